"""Which column family of a segment holds which format.

::

    store                  its column family                  older formats that it upgrades from
    plain                  default                            —
    timestamped            keyValueWithTimestamp              default (plain)
    timestamped+headers    keyValueWithTimestampAndHeaders    default, keyValueWithTimestamp
    plain+headers          windowKeyValueWithHeaders          default, keyValueWithTimestamp,
                                                              keyValueWithTimestampAndHeaders

Beside them `default` always exists, even if empty, and `offsets` holds changelog offsets and the store's
position. Source: spec "window store", section 4.5.
"""

from __future__ import annotations

from dataclasses import dataclass

from headpond.formats.window_values import ValueFormat

DEFAULT = "default"
OFFSETS = "offsets"
PLAIN_HEADERS_COLUMN_FAMILY = "windowKeyValueWithHeaders"
"""KIP-1300 does not name it; upstream's source notes intend this one. Kafka Streams' *time-ordered* window
stores use the name today with timestamped+headers bytes and other keys: never open those as window stores."""
COLUMN_FAMILIES = {
    ValueFormat.PLAIN: DEFAULT,
    ValueFormat.TIMESTAMPED: "keyValueWithTimestamp",
    ValueFormat.TIMESTAMPED_HEADERS: "keyValueWithTimestampAndHeaders",
    ValueFormat.PLAIN_HEADERS: PLAIN_HEADERS_COLUMN_FAMILY,
}
FORMATS = {family: value_format for value_format, family in COLUMN_FAMILIES.items()}
"""Column family → format of its values."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The column families of one kind of store."""

    value_format: ValueFormat
    older: tuple[ValueFormat, ...]

    @property
    def data(self) -> str:
        """The column family of the store's own format."""
        return COLUMN_FAMILIES[self.value_format]

    @property
    def known(self) -> tuple[str, ...]:
        """Every column family that a directory of this store may have."""
        olds = [COLUMN_FAMILIES[each] for each in self.older]
        return tuple(dict.fromkeys((DEFAULT, self.data, *olds, OFFSETS)))


LAYOUTS = {
    ValueFormat.PLAIN: Layout(ValueFormat.PLAIN, ()),
    ValueFormat.TIMESTAMPED: Layout(ValueFormat.TIMESTAMPED, (ValueFormat.PLAIN,)),
    ValueFormat.TIMESTAMPED_HEADERS: Layout(
        ValueFormat.TIMESTAMPED_HEADERS, (ValueFormat.PLAIN, ValueFormat.TIMESTAMPED)
    ),
    ValueFormat.PLAIN_HEADERS: Layout(
        ValueFormat.PLAIN_HEADERS,
        (ValueFormat.PLAIN, ValueFormat.TIMESTAMPED, ValueFormat.TIMESTAMPED_HEADERS),
    ),
}
