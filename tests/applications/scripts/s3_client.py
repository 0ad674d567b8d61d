"""boto3 against config/examples/s3.yaml. Arguments: the gateway's URL, the access key and its secret."""

import hashlib
import os
import sys
import urllib.error
import urllib.request

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.client import Config
from botocore.exceptions import ClientError

GATEWAY, ACCESS_KEY, SECRET = sys.argv[1:4]
MEGABYTE = 1 << 20


def connect(secret=SECRET, **options):
    config = Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, proxies={}, **options)
    return boto3.client(
        "s3", endpoint_url=GATEWAY, region_name="us-east-1", config=config,
        aws_access_key_id=ACCESS_KEY, aws_secret_access_key=secret,
    )


def digest(data):
    return hashlib.sha256(data).hexdigest()


def read(key, **options):
    return client.get_object(Bucket="bucket", Key=key, **options)["Body"].read()


client = connect()
client.create_bucket(Bucket="bucket")

# Keys whose spelling is a part of the signature.
keys = [
    "plain", "with space", "a+b", "a%2Bb", "100%", "ünïcödé/日本", "emoji-😀", "deep/er/est/", "a=b&c=d", "q?x=1#f", "semi;colon", "(a)!*'~",
    "a:b@c,d$e", "tail ", "[x]{y}|^`", "q\"<>\\",
]
for key in keys:
    body = os.urandom(1000) + key.encode()
    client.put_object(Bucket="bucket", Key=key, Body=body, Metadata={"note": "a  b"})
    answer = client.get_object(Bucket="bucket", Key=key)
    assert answer["Body"].read() == body, key
    assert client.head_object(Bucket="bucket", Key=key)["ContentLength"] == len(body), key
listed = client.list_objects_v2(Bucket="bucket")["Contents"]
assert sorted(item["Key"] for item in listed) == sorted(keys), listed
pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket", PaginationConfig={"PageSize": 3})
assert sorted(item["Key"] for page in pages for item in page["Contents"]) == sorted(keys)
found = client.list_objects_v2(Bucket="bucket", Prefix="deep/er/", Delimiter="/")
assert [item["Prefix"] for item in found["CommonPrefixes"]] == ["deep/er/est/"]

# An upload in one request, beyond the default of `max_body`.
large = os.urandom(20 * MEGABYTE)
client.put_object(Bucket="bucket", Key="large", Body=large)
assert digest(read("large")) == digest(large)
assert read("large", Range="bytes=1000-1999") == large[1000:2000]

# An upload in parts, three at a time.
parts = TransferConfig(multipart_threshold=MEGABYTE, multipart_chunksize=6 * MEGABYTE, max_concurrency=3)
with open(sys.argv[4], "wb") as file:
    file.write(large)
client.upload_file(sys.argv[4], "bucket", "in parts/ä", Config=parts)
assert client.head_object(Bucket="bucket", Key="in parts/ä")["ETag"].endswith('-4"')
client.download_file("bucket", "in parts/ä", sys.argv[4], Config=parts)
with open(sys.argv[4], "rb") as file:
    assert digest(file.read()) == digest(large)

client.put_object(Bucket="bucket", Key="of this, ä", Body=large)
client.copy_object(Bucket="bucket", Key="a copy", CopySource={"Bucket": "bucket", "Key": "of this, ä"})
assert digest(read("a copy")) == digest(large)
deleted = client.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": key} for key in keys]})
assert sorted(item["Key"] for item in deleted["Deleted"]) == sorted(keys)

# A link with a signature in its query, for a client that has no key.
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
link = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "in parts/ä"}, ExpiresIn=60)
assert digest(opener.open(link, timeout=30).read()) == digest(large)
client.put_object(Bucket="bucket", Key="x", Body=b"x")
link = connect().generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": "from a link"}, ExpiresIn=60)
opener.open(urllib.request.Request(link, data=b"linked", method="PUT", headers={"Content-Type": ""}), timeout=30)
assert read("from a link") == b"linked"

# The storage's answer to a wrong signature, and to a key that it does not have.
for wrong, code in [(lambda: connect(secret="wrong").list_buckets(), "SignatureDoesNotMatch"), (lambda: read("nothing"), "NoSuchKey")]:
    try:
        wrong()
        raise AssertionError(f"no {code}")
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, error
print("passed")
