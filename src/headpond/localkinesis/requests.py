"""What each call takes: the service's model, which botocore has, as structs that msgspec decodes and checks.

Members are attributes in snake case (`StreamName` is `stream_name`, `StreamARN` `stream_arn`), None where the
call does not give them; unknown ones are ignored, as the service does. Data stays the base64 text it came as.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from botocore import xform_name
from botocore.loaders import Loader
from botocore.model import ListShape, ServiceModel, StringShape, StructureShape

from headpond.localkinesis.settings import invalid_argument

_NEEDED = {"PartitionKey"}  # optional in the model, for streams of a kind that is not served here
_PLAIN: dict[str, Any] = {"blob": msgspec.Raw, "boolean": bool, "timestamp": float}


@cache
def _model() -> ServiceModel:
    return ServiceModel(Loader().load_service_model("kinesis", "service-2"))


@cache
def decoder_of(call: str) -> msgspec.json.Decoder[Any]:
    """Return what decodes the body of a call; one that breaks a bound is a ValidationError of msgspec."""
    shape = _model().operation_model(call).input_shape
    assert isinstance(shape, StructureShape)
    return msgspec.json.Decoder(_struct(shape))


def _struct(shape: StructureShape) -> Any:
    members: list[Any] = []
    for name, member in shape.members.items():
        needed, kind = name in {*shape.required_members, *_NEEDED}, _kind(member)
        members.append((xform_name(name), kind) if needed else (xform_name(name), kind | None, None))
    names = {xform_name(name): name for name in shape.members}
    return msgspec.defstruct(shape.name, members, rename=names, kw_only=True)


def _kind(shape: Any) -> Any:
    bounds = shape.metadata
    if isinstance(shape, StructureShape):
        return _struct(shape)
    if isinstance(shape, ListShape):
        item: Any = _kind(shape.member)
        return Annotated[list[item], msgspec.Meta(min_length=bounds.get("min"), max_length=bounds.get("max"))]
    if isinstance(shape, StringShape):
        if shape.enum:
            return Literal[tuple(shape.enum)]
        pattern = f"^(?:{bounds['pattern']})$" if "pattern" in bounds else None
        size = msgspec.Meta(min_length=bounds.get("min"), max_length=bounds.get("max"), pattern=pattern)
        return Annotated[str, size]
    if shape.type_name == "integer":
        return Annotated[int, msgspec.Meta(ge=bounds.get("min"), le=bounds.get("max"))]
    return _PLAIN.get(shape.type_name, Any)


def stream_of(call: Any) -> str:
    """Return what the caller of a call named the stream by; refuses none and two."""
    name, arn = getattr(call, "stream_name", None), call.stream_arn
    if name is not None and arn is not None:
        check_same_stream(name, arn)
    if name is None and arn is None:
        raise invalid_argument("Neither StreamName nor StreamARN was given: one of them must be.")
    return str(arn or name)


def check_same_stream(name: str, arn: str) -> None:
    """Refuse a call that names two streams."""
    if arn.rpartition("/")[2] != name:
        raise invalid_argument(f"StreamARN {arn} is not that of stream {name}: give one, or both of one.")
