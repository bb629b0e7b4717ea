/* A Hugging Face tokenizer in a Python process that uses the package `tokenizers`. */
#ifndef CLI_TRAINER_TOKENIZER_H
#define CLI_TRAINER_TOKENIZER_H
#include <jansson.h>
#include <stdio.h>
#include <sys/types.h>

typedef struct ad_cli_tokenizer {
  pid_t process; /* 0 if there is no process */
  /* `asked` carries lines to the process, `answers` carries lines from it */
  FILE *asked, *answers;
} ad_cli_tokenizer;

/* Starts Python ($ADDEND_PYTHON, or python3) with the file tokenizer.json. If the tokenizer cannot be used, reports why
 * on standard error and returns 0; else returns 1. */
int ad_cli_tokenizer_start(const char *file, ad_cli_tokenizer *out);
void ad_cli_tokenizer_end(ad_cli_tokenizer *tokenizer);
/* Asks for the tokens of a text, or for the text of a list of tokens. Returns NULL if there was no answer. Releases
 * `question`; the caller releases the answer with json_decref. */
json_t *ad_cli_tokenizer_ask(const ad_cli_tokenizer *tokenizer, json_t *question);

#endif
