import urllib.request

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

from say import PORT, attempt, brief, say

config = Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"max_attempts": 1})
s3 = boto3.client(
    "s3",
    endpoint_url=f"http://127.0.0.1:{PORT}",
    aws_access_key_id="key",
    aws_secret_access_key="word",
    region_name="us-east-1",
    config=config,
)
DATA = bytes(n * 7 % 251 for n in range(100_000))
say("bucket", s3.create_bucket(Bucket="box")["ResponseMetadata"]["HTTPStatusCode"])
for name in ("plain", "with space", "ü/ä.txt", "a+b&c=d", "percent%41", "dots/../up", "double//slash"):
    attempt(f"put {name}", lambda: s3.put_object(Bucket="box", Key=name, Body=DATA)["ETag"])
    attempt(f"get {name}", lambda: brief(s3.get_object(Bucket="box", Key=name)["Body"].read()))
say("list", sorted(entry["Key"] for entry in s3.list_objects_v2(Bucket="box")["Contents"]))
for wanted in ("bytes=0-9", "bytes=-5", "bytes=99990-", "bytes=200000-", "bytes=5-1"):
    def part():
        reply = s3.get_object(Bucket="box", Key="plain", Range=wanted)
        return reply["ResponseMetadata"]["HTTPStatusCode"], reply.get("ContentRange"), brief(reply["Body"].read())
    attempt(f"range {wanted}", part)
tag = s3.head_object(Bucket="box", Key="plain")
say("head", tag["ContentLength"], tag["ETag"], tag["ContentType"])
attempt("not modified", lambda: s3.get_object(Bucket="box", Key="plain", IfNoneMatch=tag["ETag"]))
attempt("not that", lambda: s3.get_object(Bucket="box", Key="plain", IfMatch='"x"'))
attempt("nothing there", lambda: s3.get_object(Bucket="box", Key="nothing"))
attempt("nothing there to head", lambda: s3.head_object(Bucket="box", Key="nothing"))
attempt("empty", lambda: (s3.put_object(Bucket="box", Key="empty", Body=b"")["ETag"], s3.get_object(Bucket="box", Key="empty")["ContentLength"]))
own = {"word": "a b", "other": "c"}
attempt("metadata", lambda: s3.put_object(Bucket="box", Key="meta", Body=b"x", Metadata=own, ContentType="text/x", CacheControl="no-cache")["ETag"])
reply = s3.head_object(Bucket="box", Key="meta")
say("metadata back", sorted(reply["Metadata"].items()), reply["ContentType"], reply["CacheControl"])
# Many parts, several at once.
large = bytes(n * 31 % 253 for n in range(1 << 10)) * (21 << 10)
with open("large", "wb") as file:
    file.write(large)
parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20, max_concurrency=4)
s3.upload_file("large", "box", "large", Config=parts)
s3.download_file("box", "large", "back", Config=parts)
say("parts", open("back", "rb").read() == large)
upload = s3.create_multipart_upload(Bucket="box", Key="aborted")["UploadId"]
s3.upload_part(Bucket="box", Key="aborted", UploadId=upload, PartNumber=1, Body=DATA)
attempt("aborted", lambda: s3.abort_multipart_upload(Bucket="box", Key="aborted", UploadId=upload)["ResponseMetadata"]["HTTPStatusCode"])
# Sums of the content that follow it, in chunks that are signed.
attempt("trailing sum", lambda: s3.put_object(Bucket="box", Key="summed", Body=open("large", "rb"), ChecksumAlgorithm="CRC32")["ETag"][:3])
attempt("summed", lambda: s3.get_object(Bucket="box", Key="summed")["ContentLength"])
signed = s3.generate_presigned_url("get_object", Params={"Bucket": "box", "Key": "with space"}, ExpiresIn=600)
attempt("signed get", lambda: brief(urllib.request.urlopen(signed).read()))
signed = s3.generate_presigned_url("put_object", Params={"Bucket": "box", "Key": "signed"}, ExpiresIn=600)
attempt("signed put", lambda: urllib.request.urlopen(urllib.request.Request(signed, data=DATA, method="PUT")).status)
form = s3.generate_presigned_post("box", "posted")
say("copy", s3.copy_object(Bucket="box", Key="copy", CopySource={"Bucket": "box", "Key": "plain"})["ResponseMetadata"]["HTTPStatusCode"])
say("delete", s3.delete_object(Bucket="box", Key="copy")["ResponseMetadata"]["HTTPStatusCode"])
names = [{"Key": name} for name in ("plain", "with space", "empty")]
say("delete several", sorted(entry["Key"] for entry in s3.delete_objects(Bucket="box", Delete={"Objects": names})["Deleted"]))
say("pages", sum(len(page.get("Contents", ())) for page in s3.get_paginator("list_objects_v2").paginate(Bucket="box", PaginationConfig={"PageSize": 2})))
