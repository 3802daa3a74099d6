"""What is asked: prompts, schemas and facts, read from folders."""
