/* Addresses of pages, and paths of REST. */
const part = encodeURIComponent;

/** The address `#/jobs/<id>` of a job, the address of a part of its page, and its REST path. */
export const jobLink = (jobId) => `#/jobs/${part(jobId)}`;
export const partLink = (jobId, key) => `${jobLink(jobId)}?part=${key}`;
export const jobPath = (jobId, rest = "") => `/v1/jobs/${part(jobId)}${rest}`;

export const resultPath = (jobId, rest) => `/v1/results/${part(jobId)}${rest}`;

export const scheduleLink = (name) => `#/schedules/${part(name)}`;
export const schedulePath = (name, rest = "") => `/v1/schedules/${part(name)}${rest}`;

export const bucketLink = (bucket) => `#/data/${part(bucket)}`;
export const shardLink = (bucket, shard, more = {}) =>
  `${bucketLink(bucket)}?${new URLSearchParams({ shard, ...more })}`;

/** The path of a bucket's data: `dataPath("samples", "images", "a/b.tar")`. */
export const dataPath = (kind, bucket, shard) => {
  const name = shard === undefined ? "" : `/${shard.split("/").map(part).join("/")}`;
  return `/v1/${kind}/${part(bucket)}${name}`;
};

/** The buckets of a job's input or output: a text with several of them. */
export const bucketsOf = (uris) => (uris || "").split(", ").filter(Boolean);

/** A bucket by the end of its address, because the beginnings are often equal. */
export const shortBucket = (uri) => uri.replace(/^file:\/\/.*\/(?=[^/]+\/*$)/, "");
