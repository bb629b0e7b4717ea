/* Text and tokens of prompts, as ad_train_options asks for them. */
#ifndef CLI_TRAINER_ENCODING_H
#define CLI_TRAINER_ENCODING_H
#include "addend/addend.h"

/* ad_train_options.encode and .decode. The first call starts this process's tokenizer; one that cannot be started is
 * told once on standard error. */
ad_status ad_cli_encode(void *context, const char *tokenizer, const char *text, int32_t **tokens, int64_t *count);
char *ad_cli_decode(void *context, const char *tokenizer, const int32_t *tokens, int64_t count);
/* Ends it, before ranks start: they share nothing with it. */
void ad_cli_encoding_end(void);

#endif
