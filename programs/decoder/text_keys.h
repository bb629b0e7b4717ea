/* The `data` keys of programs that are trained on text. */
#ifndef DECODER_TEXT_KEYS_H
#define DECODER_TEXT_KEYS_H
#include "addend/data.h"
#include "addend/program.h"

#define AD_TEXT_KEY(name, kind, ...) \
  { "data." name, kind, __VA_ARGS__ }
/* Entries for the key table of a program whose struct `options` has an ad_text_options called `member`. */
#define AD_TEXT_KEYS(options, member)                                                                                 \
  AD_TEXT_KEY("text", AD_KEY_TEXT, .list = 1, .offset = offsetof(options, member.text),                               \
              .second = offsetof(options, member.text_count), .fallback = "",                                         \
              .help = "files, or folders of files, whose bytes are tokens; or data.tokens"),                          \
      AD_TEXT_KEY("tokens", AD_KEY_TEXT, .list = 1, .offset = offsetof(options, member.tokens),                       \
                  .second = offsetof(options, member.token_count), .fallback = "",                                    \
                  .help = "token ids in place of data.text: .npy files of uint16 or uint32"),                         \
      AD_TEXT_KEY("mask", AD_KEY_TEXT, .list = 1, .offset = offsetof(options, member.mask),                           \
                  .second = offsetof(options, member.mask_count), .fallback = "",                                     \
                  .help = "a .npy file of uint8 or bool for each of data.tokens: 0 where a token is no target"),      \
      AD_TEXT_KEY("seq", AD_KEY_INTEGER, .offset = offsetof(options, member.seq), .least = 1, .most = 1 << 24,        \
                  .help = "number of tokens in a sample"),                                                            \
      AD_TEXT_KEY("valid", AD_KEY_NUMBER, .list = 1, .offset = offsetof(options, member.valid),                       \
                  .second = offsetof(options, member.valid_count), .least = 0, .most = 1, .fallback = "",             \
                  .help = "fraction of each sample's tokens that count, cyclic by sample; empty: all"),               \
      AD_TEXT_KEY("validation", AD_KEY_NUMBER, .offset = offsetof(options, member.validation), .least = 0, .most = 1, \
                  .open_most = 1, .fallback = "0",                                                                    \
                  .help = "fraction at the end of every file that is kept for validation")
enum { AD_TEXT_KEY_COUNT = 6 };

/* Checks that either text or tokens are given, and that masks, if given, are as many as the files of tokens. */
void ad_text_check(const ad_text_options *text, const ad_complaints *to);
/* Checks each file, with complaints at its element of data.text, data.tokens or data.mask, and that all files together
 * are long enough. Reads every token. */
void ad_text_check_files(const ad_text_options *text, int64_t vocabulary, const ad_complaints *to);
/* Opens the text or the tokens that the options name. With unread = 1 only the sizes of a text are found. */
ad_status ad_text_open(const ad_text_options *text, int64_t vocabulary, int unread, ad_text_data **out) AD_CHECKED;

#endif
