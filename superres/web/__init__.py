"""The web demo: a Gradio page around an `Upscaler`, and the server that carries it. `app.py` starts
it."""
