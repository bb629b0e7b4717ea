/* Converts text to tokens and tokens to text, for the prompts of a training. */
#ifndef CLI_TRAINER_ENCODING_H
#define CLI_TRAINER_ENCODING_H
#include "addend/addend.h"

/* For ad_train_options.encode and .decode. The first call starts this process's tokenizer; if that fails, the reason is
 * printed once to standard error. */
ad_status ad_cli_encode(void *context, const char *tokenizer, const char *text, int32_t **tokens, int64_t *count);
char *ad_cli_decode(void *context, const char *tokenizer, const int32_t *tokens, int64_t count);
/* Ends the tokenizer. Must be called before ranks are forked, because ranks must not share a tokenizer. */
void ad_cli_encoding_end(void);

#endif
