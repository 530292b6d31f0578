"""The benchmark's result, schema ``edgepeft.bench/1``: its fields, and the figures derived from raw samples."""
