"""The meaning of tokens: one module per task.

A task's class (`superres.tasks.faces.FaceTask`, `superres.tasks.translation.Codec`) has `encode`,
which converts N inputs to source tokens, int64 [N, S], and `decode`, which converts target tokens
[N, T] to N outputs.
"""
