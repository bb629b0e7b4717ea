/* A tokenizer of Hugging Face's, in a process of Python's that has the package tokenizers. */
#ifndef CLI_TRAINER_TOKENIZER_H
#define CLI_TRAINER_TOKENIZER_H
#include <jansson.h>
#include <stdio.h>
#include <sys/types.h>

typedef struct ad_cli_tokenizer {
  pid_t process; /* 0: none is there */
  FILE *asked, *answers;
} ad_cli_tokenizer;

/* Starts Python ($ADDEND_PYTHON, or python3) on the file tokenizer.json. Returns 0 where it cannot be used, with a line
 * on standard error that says why. */
int ad_cli_tokenizer_start(const char *file, ad_cli_tokenizer *out);
void ad_cli_tokenizer_end(ad_cli_tokenizer *tokenizer);
/* The answer to a text, a list of tokens, or to a list of tokens, their text; NULL: there was none. `question` is taken
 * over; release the answer with json_decref. */
json_t *ad_cli_tokenizer_ask(const ad_cli_tokenizer *tokenizer, json_t *question);

#endif
