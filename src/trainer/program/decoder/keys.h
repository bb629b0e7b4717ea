/* The recipe keys that all decoders have: the part of their records that knows no tape. */
#ifndef PROGRAM_DECODER_KEYS_H
#define PROGRAM_DECODER_KEYS_H
#include "program/decoder/options.h"
#include "program/decoder/text_keys.h"

#define AD_DECODER_KEY(name, kind, ...) \
  { "model." name, kind, __VA_ARGS__ }
/* For the key table of a program whose struct `options` has the ad_decoder_options `member`; its text keys are apart.
 */
#define AD_DECODER_KEYS(options, member)                                                                               \
  AD_DECODER_KEY("layers", AD_KEY_INTEGER, .offset = offsetof(options, member.layers), .least = 1, .most = 4096,       \
                 .help = "blocks of attention and MLP"),                                                               \
      AD_DECODER_KEY("d_model", AD_KEY_INTEGER, .offset = offsetof(options, member.d_model), .least = 1,               \
                     .most = 1 << 20, .help = "width of a token"),                                                     \
      AD_DECODER_KEY("heads", AD_KEY_INTEGER, .offset = offsetof(options, member.heads), .least = 1, .most = 1 << 20,  \
                     .help = "attention heads; they divide d_model into even parts"),                                  \
      AD_DECODER_KEY("tied", AD_KEY_BOOLEAN, .offset = offsetof(options, member.tied), .fallback = "true",             \
                     .help = "the head is the embedding"),                                                             \
      AD_DECODER_KEY("rotary_base", AD_KEY_NUMBER, .offset = offsetof(options, member.rotary_base), .least = 1,        \
                     .most = 1e12, .open_least = 1, .fallback = "10000", .help = "slowest rotation of the positions"), \
      AD_DECODER_KEY("kv_heads", AD_KEY_INTEGER, .offset = offsetof(options, member.kv_heads), .least = 0,             \
                     .most = 1 << 20, .fallback = "0",                                                                 \
                     .help = "heads of keys and values, a divisor of heads; 0: as many as heads"),                     \
      AD_DECODER_KEY("qk_norm", AD_KEY_BOOLEAN, .offset = offsetof(options, member.qk_norm), .fallback = "false",      \
                     .help = "queries and keys are normalised head by head"),                                          \
      AD_DECODER_KEY("bias", AD_KEY_BOOLEAN, .offset = offsetof(options, member.bias), .fallback = "false",            \
                     .help = "the products of attention and MLP have biases"),                                         \
      AD_DECODER_KEY("sequence_parallel", AD_KEY_BOOLEAN, .offset = offsetof(options, member.sequence_parallel),       \
                     .fallback = "false", .help = "between the regions of tp the sequence is cut over it"),            \
      AD_DECODER_KEY("convert_norms", AD_KEY_BOOLEAN, .offset = offsetof(options, member.convert_norms),               \
                     .fallback = "false",                                                                              \
                     .help =                                                                                           \
                         "with sequence_parallel: norm weights are converted I->R at each use, instead of R and "      \
                         "summed by the reducer"),                                                                     \
      AD_DECODER_KEY("gather_keys", AD_KEY_BOOLEAN, .offset = offsetof(options, member.gather_keys),                   \
                     .fallback = "false",                                                                              \
                     .help = "over cp keys and values are gathered, for comparison, instead of passed around a ring")
enum { AD_DECODER_KEY_COUNT = 11 };

/* What the model's options say together and with the mesh of the kind `kind`, which is told at `key`; the layers of a
 * pipeline's stages; what a text's sequence says with both; and the axes alone, those that decoders and encoders learn
 * to be distributed over. */
void ad_decoder_check(const char *kind, const char *key, const ad_decoder_options *options, const ad_mesh *mesh,
                      const ad_complaints *to);
void ad_decoder_check_stages(const ad_decoder_options *options, const ad_program_setting *setting,
                             const ad_complaints *to);
void ad_decoder_check_text(const ad_decoder_options *options, const ad_mesh *mesh, const ad_complaints *to);
void ad_decoder_check_axes(const char *kind, const char *key, const ad_mesh *mesh, const ad_complaints *to);
/* How many tokens the model knows: the bytes. */
int64_t ad_decoder_vocabulary(const ad_decoder_options *options);
/* Heads of keys and values, where kv_heads is 0 too. */
int64_t ad_decoder_kv_heads(const ad_decoder_options *options);

#endif
