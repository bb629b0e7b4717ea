/* Text to tokens and back for prompts: the functions that ad_train_options needs. */
#ifndef CLI_TRAINER_ENCODING_H
#define CLI_TRAINER_ENCODING_H
#include "addend/addend.h"

/* The functions for ad_train_options.encode and .decode. The first call starts this process's tokenizer. If that
 * fails, standard error reports it once. */
ad_status ad_cli_encode(void *context, const char *tokenizer, const char *text, int32_t **tokens, int64_t *count);
char *ad_cli_decode(void *context, const char *tokenizer, const int32_t *tokens, int64_t count);
/* Ends the tokenizer. Called before ranks start, because they must not share it. */
void ad_cli_encoding_end(void);

#endif
