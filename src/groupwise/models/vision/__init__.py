"""Vision-language models: pictures of prompts, their preprocessing, and the modules of transformers that read them."""
