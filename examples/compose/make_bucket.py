"""Make the bucket of the lake in the S3 server, as soon as that answers."""

import os
import time

import boto3
from botocore.exceptions import EndpointConnectionError

client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"], region_name="us-east-1")
for _ in range(60):
    try:
        client.create_bucket(Bucket="lake")
        break
    except EndpointConnectionError:
        time.sleep(1)
else:
    raise SystemExit("The S3 server did not answer within a minute.")
