/* The `data` keys of programs that are trained on text. */
#ifndef PROGRAM_DECODER_TEXT_KEYS_H
#define PROGRAM_DECODER_TEXT_KEYS_H
#include "addend/data.h"
#include "addend/program.h"

#define AD_TEXT_KEY(name, kind, ...) \
  { "data." name, kind, __VA_ARGS__ }
/* For the key table of a program whose struct `options` has the ad_text_options `member`. */
#define AD_TEXT_KEYS(options, member)                                                                             \
  AD_TEXT_KEY("text", AD_KEY_TEXT, .list = 1, .offset = offsetof(options, member.text),                           \
              .second = offsetof(options, member.text_count), .help = "files, or folders of files"),              \
      AD_TEXT_KEY("seq", AD_KEY_INTEGER, .offset = offsetof(options, member.seq), .least = 1, .most = 1 << 24,    \
                  .help = "tokens of a sample; a token is a byte"),                                               \
      AD_TEXT_KEY("valid", AD_KEY_NUMBER, .list = 1, .offset = offsetof(options, member.valid),                   \
                  .second = offsetof(options, member.valid_count), .least = 0, .most = 1, .fallback = "",         \
                  .help = "fraction of each sample's tokens that count, cyclic by sample; empty: all"),           \
      AD_TEXT_KEY("held_out", AD_KEY_NUMBER, .offset = offsetof(options, member.held_out), .least = 0, .most = 1, \
                  .open_most = 1, .fallback = "0",                                                                \
                  .help = "fraction at the end of every file that is kept for validation")
enum { AD_TEXT_KEY_COUNT = 4 };

/* Whether each file is there, complaining at its own element of data.text, and whether together they are long enough.
 */
void ad_text_check_files(const ad_text_options *text, const ad_complaints *to);

#endif
