"""s3_put.py BUCKET KEY FILE: overwrites an object of the server of AWS_ENDPOINT_URL, which Octet itself never does."""

import sys

import boto3

boto3.client("s3").put_object(Bucket=sys.argv[1], Key=sys.argv[2], Body=open(sys.argv[3], "rb").read())
