"""Models: plain PyTorch modules that take packed sequences. A model is one file and one line in `MODELS`."""

MODELS: dict[str, str] = {
    "wan": "trainer.models.wan:Wan",
}
"""Registry name -> `module:Class`; the class has `Config`, `PRESETS` and the packed `forward` of `wan.Wan`."""
