"use strict";
/* Specs to start from. */
(() => {
  const dsort = (window.dsort = window.dsort || {});

  dsort.EXAMPLES = [
    [
      "Shuffle, with a seed",
      `description: Shuffle all records; the same seed gives the same bytes again
input_bck: samples
output_bck: shuffled
input_format:
  prefix: samples-
output_format: shuffled-%06d
output_shard_size: 64MB
algorithm:
  kind: shuffle
  seed: 42
`,
    ],
    [
      "Shards of another size, order kept",
      `description: The same records in the same order, in shards of 1 GB
input_bck: samples
output_bck: resized
output_format: resized-%06d
output_shard_size: 1GB
algorithm: {kind: none}
`,
    ],
    [
      "A fixed number of records in each shard",
      `description: A thousand records in every shard, the last one fewer; by record key
input_bck: samples
output_bck: thousands
output_format: thousands-%05d
output_shard_records: 1000
algorithm:
  kind: alphanumeric
`,
    ],
    [
      "Sort by what a member says",
      `description: Largest class first, as each record's .cls says
input_bck: samples
output_bck: by-class
output_format: by-class-%04d
output_shard_size: 256MB
algorithm:
  kind: content
  extension: .cls
  content_key_type: int
  decreasing: true
`,
    ],
    [
      "Sort by a field of a JSON member",
      `description: By a field of each record's JSON; records without a .json come last
input_bck: samples
output_bck: by-score
output_format: by-score-%04d
output_shard_size: 256MB
algorithm:
  kind: content
  extension: .json
  json_field: meta.score
  content_key_type: float
  content_key_missing: last
`,
    ],
    [
      "Split by an external key map",
      `description: Regular expressions say which records go where, and a place for the rest
input_bck: samples
output_bck: split
ekm:
  train-%04d: ['^[0-9]*[0-8](\\.|$)']
  validation-%04d: ['^[0-9]*9(\\.|$)']
ekm_default: rest-%03d
output_shard_records: 1000
algorithm: {kind: alphanumeric}
ekm_missing_key: ignore
`,
    ],
    [
      "Make the best of damaged data",
      `description: Skip what is broken, keep the rest, and say what was done
input_bck: samples
output_bck: mended
output_format: mended-%04d
output_shard_size: 64MB
algorithm: {kind: none}
missing_shards: ignore
corrupt_shards: skip
duplicate_keys: rename
stray_members: drop
`,
    ],
    [
      "From bucket to bucket of an object store (JSON)",
      `{
  "description": "Credentials come from the service's environment, never from a spec",
  "input_bck": "s3://training-data/train",
  "output_bck": "s3://training-data/train-shuffled",
  "output_format": "shuffled-%06d",
  "output_shard_size": "1GB",
  "algorithm": {"kind": "shuffle", "seed": "epoch-1"},
  "verify": "content"
}
`,
    ],
  ];
})();
