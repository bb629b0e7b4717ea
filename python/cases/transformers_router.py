"""Transformers, expert parallelism: each rank's gradient of the router's scores has only the slots of its own
experts, and no all-reduce sums them over the ranks.
"""

import case
import transformers_jobs as jobs

SOURCE = "https://github.com/huggingface/transformers/pull/48205"
WRONG, RIGHT = ["transformers==5.16.1"], ["transformers==5.17.0"]


def watched():
    return jobs.watched("grouped_mm")


def checked():
    return jobs.checked("grouped_mm")


if __name__ == "__main__":
    case.play(jobs.WORLD, watched, checked)
