"""Transformers, expert parallelism with `batched_mm`: slots of experts on other ranks add to the router's gradient."""

import case
import transformers_jobs as jobs

SOURCE = "https://github.com/huggingface/transformers/issues/48687"
WRONG, RIGHT = ["transformers==5.17.0"], ["transformers==5.18.0"]


def watched():
    return jobs.watched("batched_mm")


def checked():
    return jobs.checked("batched_mm")


if __name__ == "__main__":
    case.play(jobs.WORLD, watched, checked)
