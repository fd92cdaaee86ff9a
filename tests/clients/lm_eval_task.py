"""lm-eval against a server: `python lm_eval_task.py BASE_URL`. Tasks of its own data; the first check that fails ends it."""

import json
import os
import pathlib
import sys
import tempfile

# The data is here.
os.environ["HF_HUB_OFFLINE"] = "1"

import lm_eval
import requests
from lm_eval.api.task import ConfigurableTask

CAPITALS = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Russia": "Moscow"}


def task(data, **config):
    """A task of the capitals: its questions are the lines of `data`."""
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "num_fewshot": 0,
    }
    return ConfigurableTask(config={**common, **config})


def main():
    base = sys.argv[1]
    model = requests.get(base + "/v1/models", timeout=60).json()["data"][0]["id"]
    with tempfile.TemporaryDirectory() as directory:
        data = pathlib.Path(directory) / "capitals.jsonl"
        cities = list(CAPITALS.values())
        lines = [
            {"country": country, "city": city, "cities": cities, "label": cities.index(city)}
            for country, city in CAPITALS.items()
        ]
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        question = "The capital of {{country}} is"
        tasks = [
            # The likelihood of each city: the prompt is echoed with its log-probabilities.
            task(
                data,
                task="capitals",
                output_type="multiple_choice",
                doc_to_text=question,
                doc_to_choice="{{cities}}",
                doc_to_target="label",
                metric_list=[{"metric": "acc"}],
            ),
            # The likelihood of a text as a whole.
            task(
                data,
                task="perplexity",
                output_type="loglikelihood_rolling",
                doc_to_text="",
                doc_to_target=question + " {{city}}.",
                metric_list=[{"metric": "word_perplexity"}],
            ),
            # A text that is generated up to a stop string.
            task(
                data,
                task="completion",
                output_type="generate_until",
                doc_to_text=question,
                doc_to_target=" {{city}}",
                generation_kwargs={"until": [".", ","], "max_gen_toks": 4, "do_sample": False},
                metric_list=[{"metric": "exact_match"}],
            ),
        ]
        # Its tokenizer is the server's own, by /tokenizer_info and /tokenize.
        scores = lm_eval.simple_evaluate(
            model="local-completions",
            model_args={
                "base_url": base + "/v1/completions",
                "model": model,
                "tokenizer_backend": "remote",
                "max_length": 2048,
            },
            tasks=tasks,
            batch_size=2,
            bootstrap_iters=0,
            log_samples=False,
        )["results"]
    assert scores["capitals"]["acc,none"] == 1.0, scores
    assert 1 < scores["perplexity"]["word_perplexity,none"] < 1000, scores
    assert scores["completion"]["exact_match,none"] >= 0.5, scores
    print("simple_evaluate")


main()
