/* The recipe keys that all decoders have. Programs can check recipes with these functions without a tape. */
#ifndef DECODER_KEYS_H
#define DECODER_KEYS_H
#include "decoder/options.h"
#include "decoder/text_keys.h"

#define AD_DECODER_KEY(name, kind, ...) \
  { "model." name, kind, __VA_ARGS__ }
/* Entries for the key table of a program whose struct `options` has an ad_decoder_options called `member`. `biases` are
 * the words that model.bias accepts. AD_VOCABULARY_KEY and AD_TEXT_KEYS have the keys of the vocabulary and of text. */
#define AD_DECODER_KEYS(options, member, biases)                                                                       \
  AD_DECODER_KEY("layers", AD_KEY_INTEGER, .offset = offsetof(options, member.layers), .least = 1, .most = 4096,       \
                 .help = "number of blocks of attention and MLP"),                                                     \
      AD_DECODER_KEY("d_model", AD_KEY_INTEGER, .offset = offsetof(options, member.d_model), .least = 1,               \
                     .most = 1 << 20, .help = "width of a token"),                                                     \
      AD_DECODER_KEY("heads", AD_KEY_INTEGER, .offset = offsetof(options, member.heads), .least = 1, .most = 1 << 20,  \
                     .help = "number of attention heads; without head_dim it divides d_model into even parts"),        \
      AD_DECODER_KEY("tied", AD_KEY_BOOLEAN, .offset = offsetof(options, member.tied), .fallback = "true",             \
                     .help = "the head is the embedding"),                                                             \
      AD_DECODER_KEY("rotary_base", AD_KEY_NUMBER, .offset = offsetof(options, member.rotary_base), .least = 1,        \
                     .most = 1e12, .open_least = 1, .fallback = "10000", .help = "slowest rotation of the positions"), \
      AD_DECODER_KEY("kv_heads", AD_KEY_INTEGER, .offset = offsetof(options, member.kv_heads), .least = 0,             \
                     .most = 1 << 20, .fallback = "0",                                                                 \
                     .help = "number of heads of keys and values, a divisor of heads; 0: as many as heads"),           \
      AD_DECODER_KEY("qk_norm", AD_KEY_BOOLEAN, .offset = offsetof(options, member.qk_norm), .fallback = "false",      \
                     .help = "queries and keys are normalised head by head"),                                          \
      AD_DECODER_KEY("bias", AD_KEY_BOOLEAN, .offset = offsetof(options, member.bias), .words = (biases),              \
                     .fallback = "none",                                                                               \
                     .help =                                                                                           \
                         "products that have biases: none, qkv (wq, wk, wv), attention (wo too), mlp or all; "         \
                         "experts have none"),                                                                         \
      AD_DECODER_KEY("sequence_parallel", AD_KEY_BOOLEAN, .offset = offsetof(options, member.sequence_parallel),       \
                     .fallback = "false", .help = "between the regions of tp the sequence is cut over it"),            \
      AD_DECODER_KEY("convert_norms", AD_KEY_BOOLEAN, .offset = offsetof(options, member.convert_norms),               \
                     .fallback = "false",                                                                              \
                     .help =                                                                                           \
                         "with sequence_parallel: norm weights are converted I->R at each use, instead of R and "      \
                         "summed by the reducer"),                                                                     \
      AD_DECODER_KEY("gather_keys", AD_KEY_BOOLEAN, .offset = offsetof(options, member.gather_keys),                   \
                     .fallback = "false",                                                                              \
                     .help = "over cp keys and values are gathered, for comparison, instead of passed around a ring"), \
      AD_DECODER_KEY("norm_epsilon", AD_KEY_NUMBER, .offset = offsetof(options, member.norm_epsilon), .least = 0,      \
                     .open_least = 1, .most = 1, .fallback = "1e-5",                                                   \
                     .help = "what every norm adds to the mean square"),                                               \
      AD_DECODER_KEY("head_dim", AD_KEY_INTEGER, .offset = offsetof(options, member.head_dim), .least = 0,             \
                     .most = 1 << 20, .fallback = "0",                                                                 \
                     .help = "elements of an attention head, an even number; 0: d_model / heads"),                     \
      AD_DECODER_KEY("rotary_scaling", AD_KEY_NUMBER, .list = 1, .offset = offsetof(options, member.rotary_scaling),   \
                     .second = offsetof(options, member.rotary_scaling_count), .least = 0, .open_least = 1,            \
                     .most = 1e12, .fallback = "",                                                                     \
                     .help =                                                                                           \
                         "of rotations, as Llama 3.1 scales them: [factor, low_freq_factor, high_freq_factor, "        \
                         "original_positions]; empty: none")
#define AD_VOCABULARY_KEY(options, member)                                                                 \
  AD_DECODER_KEY("vocabulary", AD_KEY_INTEGER, .offset = offsetof(options, member.vocabulary), .least = 1, \
                 .most = 1 << 24, .fallback = "256",                                                       \
                 .help = "tokens that the embedding and the head know; text has the 256 bytes")
enum { AD_DECODER_KEY_COUNT = 14 };
/* The complete key table of a decoder that is trained on text. The struct `options` begins with `decoder`, an
 * ad_decoder_options. The arguments after `biases` are the program's own keys. */
#define AD_TEXT_DECODER_KEYS(options, biases, ...)                                             \
  AD_DECODER_KEYS(options, decoder, biases), AD_VOCABULARY_KEY(options, decoder), __VA_ARGS__, \
      AD_TEXT_KEYS(options, decoder.data)
enum { AD_TEXT_DECODER_KEY_COUNT = AD_DECODER_KEY_COUNT + 1 + AD_TEXT_KEY_COUNT };
/* The words that model.bias accepts, in the order of ad_bias: for decoders with MLPs, and for decoders whose second
 * branch has no biases. */
extern const char *const ad_bias_words[], *const ad_attention_bias_words[];

/* Check a recipe. ad_decoder_check: a decoder's options against each other and the mesh, with complaints about the mesh
 * made at `key`. _stages: the numbers of layers of a pipeline's stages. _text: the length of a text's samples against
 * options and mesh. _axes: whether decoders and encoders use all axes of the mesh. */
void ad_decoder_check(const char *kind, const char *key, const ad_decoder_options *options, const ad_mesh *mesh,
                      const ad_complaints *to);
void ad_decoder_check_stages(const ad_decoder_options *options, const ad_program_setting *setting,
                             const ad_complaints *to);
void ad_decoder_check_text(const ad_decoder_options *options, const ad_mesh *mesh, const ad_complaints *to);
void ad_decoder_check_axes(const char *kind, const char *key, const ad_mesh *mesh, const ad_complaints *to);
/* Check a decoder that is trained on text. ad_text_decoder_check: its options, on the mesh of its first stage.
 * _check_files, for a program record's check_files: the files that the options name. `options` begins with an
 * ad_decoder_options. */
void ad_text_decoder_check(const char *kind, const void *options, const ad_program_setting *setting,
                           const ad_mesh *mesh, const ad_complaints *to);
void ad_text_decoder_check_files(const void *options, const ad_complaints *to);
/* Each returns the option's value or, if that is 0, its default: heads of keys and values, elements of a head, size of
 * the vocabulary. */
int64_t ad_decoder_kv_heads(const ad_decoder_options *options);
int64_t ad_decoder_head_dim(const ad_decoder_options *options);
int64_t ad_decoder_vocabulary(const ad_decoder_options *options);
int64_t ad_decoder_usual(const void *options, const char *key); /* the usual values of a decoder's keys; for
                                                                 * rules.usual of a record */
ad_rotary_scaling ad_decoder_rotary_scaling(const ad_decoder_options *options);

#endif
