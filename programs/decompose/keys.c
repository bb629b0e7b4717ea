/* The recipe keys of decompose, and the checks of their values against each other and the meshes. */
#include "decompose/keys.h"

#include <fnmatch.h>
#include <string.h>
#include "addend/helpers.h"
#include "gpt/keys.h"
#include "decompose/model.h"

#define AT(field) offsetof(ad_decompose_options, field)
#define COEFFICIENT(loss, help_text)                                                                              \
  {                                                                                                               \
    "losses." #loss ".coefficient", AD_KEY_NUMBER, .offset = AT(loss), .least = 0, .most = 1e12, .fallback = "1", \
                                                   .help = help_text                                              \
  }

const ad_key ad_decompose_keys[AD_DECOMPOSE_KEY_COUNT] = {
    AD_DECODER_KEYS(ad_decompose_options, target.decoder, ad_bias_words),
    {"model.d_hidden", AD_KEY_INTEGER, .offset = AT(target.d_hidden), .least = 0, .most = 1 << 22, .fallback = "0",
     .help = "width inside the MLP; 0: 8/3 d_model, rounded up to a multiple of 16"},
    {"model.plain_clamp", AD_KEY_BOOLEAN, .offset = AT(plain_clamp), .fallback = "false",
     .help = "importances below 0 get no gradient, which --directional needs"},
    AD_TEXT_KEYS(ad_decompose_options, target.decoder.data),
    {"target.weights", AD_KEY_TEXT, .offset = AT(weights), .fallback = "",
     .help = "a safetensors file of the decoder that is decomposed; left out: trained first, or drawn from the seed"},
    {"target.steps", AD_KEY_INTEGER, .offset = AT(target_steps), .least = 0, .most = 4294967296.0, .fallback = "0",
     .help = "steps that the decoder is first trained for, into the folder `target` of the run; 0: it is not trained"},
    {"target.global_batch", AD_KEY_INTEGER, .offset = AT(target_batch), .least = 1, .most = 1 << 24, .fallback = "16",
     .help = "samples in a step of that training, over all ranks"},
    {"target.lr", AD_KEY_NUMBER, .offset = AT(target_lr), .least = 0, .most = 1e6, .fallback = "3e-3",
     .help = "learning rate of that training after warm-up"},
    {"target.warmup", AD_KEY_INTEGER, .offset = AT(target_warmup), .least = 0, .most = 4294967296.0, .fallback = "0",
     .help = "steps in which the rate of that training rises to lr"},
    {"target.weight_decay", AD_KEY_NUMBER, .offset = AT(target_weight_decay), .least = 0, .most = 1e3, .fallback = "0",
     .help = "weight decay of its matrices, but not of the embedding"},
    {"importance.layers", AD_KEY_INTEGER, .offset = AT(importance_layers), .least = 1, .most = 4096,
     .help = "blocks of the importance network"},
    {"importance.d_model", AD_KEY_INTEGER, .offset = AT(importance_d_model), .least = 1, .most = 1 << 20,
     .help = "its width"},
    {"importance.heads", AD_KEY_INTEGER, .offset = AT(importance_heads), .least = 1, .most = 1 << 20,
     .help = "attention heads of the importance network; they divide its width into even parts"},
    {"sites[].match", AD_KEY_TEXT, .list = 1, .offset = AT(matches), .second = AT(match_count),
     .help = "a pattern of names of the target's matrices, such as \"blocks.*.attn.wq\""},
    {"sites[].components", AD_KEY_INTEGER, .list = 1, .offset = AT(components), .second = AT(components_count),
     .least = 1, .most = 1 << 20, .help = "number of rank-one components that each of these matrices is written as"},
    COEFFICIENT(faithfulness, "coefficient of how far components are from the weights; 0: only measured"),
    COEFFICIENT(stochastic, "coefficient of the divergence with random masks; 0: only measured"),
    {"losses.stochastic.divergence", AD_KEY_TEXT, .offset = AT(divergence), .fallback = "mse",
     .help = "divergence of logits: mse (the sum of squares over the vocabulary) or kl"},
    COEFFICIENT(sparsity, "coefficient of how much importance there is; 0: only measured"),
    {"losses.sparsity.power", AD_KEY_NUMBER, .offset = AT(power), .least = 0, .most = 16, .open_least = 1,
     .fallback = "1", .help = "of each importance"},
    {"losses.sparsity.last_power", AD_KEY_NUMBER, .offset = AT(last_power), .least = 0, .most = 16, .open_least = 1,
     .word = "power", .fallback = "power",
     .help = "power at the end, reached in a straight line: power (unchanged) or a number"},
    {"losses.sparsity.anneal_from", AD_KEY_NUMBER, .offset = AT(anneal_from), .least = 0, .most = 1, .fallback = "0",
     .help = "fraction of train.steps after which the power begins to change"},
    {"losses.sparsity.anneal_to", AD_KEY_NUMBER, .offset = AT(anneal_to), .least = 0, .most = 1, .fallback = "1",
     .help = "fraction of train.steps after which the power no longer changes"},
    {"losses.sparsity.beta", AD_KEY_NUMBER, .offset = AT(beta), .least = 0, .most = 1e6, .fallback = "0",
     .help = "weight of the logarithm, which favours components that are used seldom"},
    {"losses.sparsity.epsilon", AD_KEY_NUMBER, .offset = AT(epsilon), .least = 0, .most = 1, .open_least = 1,
     .fallback = "1e-6", .help = "added to each importance"},
    COEFFICIENT(adversarial, "coefficient of the divergence with masks that an adversary chose; 0: only measured"),
    {"ascent.steps", AD_KEY_INTEGER, .offset = AT(ascent_steps), .least = 0, .most = 1000, .fallback = "1",
     .help = "steps up of the adversary's sources before each forward pass"},
    {"ascent.rule", AD_KEY_TEXT, .offset = AT(ascent_rule), .fallback = "adam", .help = "adam or sign"},
    {"ascent.scope", AD_KEY_TEXT, .offset = AT(ascent_scope), .fallback = "sample",
     .help = "sample: each sample has its own sources; batch: those of a microbatch share them"},
    {"ascent.bounds", AD_KEY_TEXT, .offset = AT(ascent_bounds), .fallback = "clamp",
     .help = "how sources stay between 0 and 1: clamp, or sigmoid of numbers that climb freely"},
    {"ascent.lr", AD_KEY_NUMBER, .offset = AT(ascent_lr), .least = 0, .most = 1, .fallback = "0.1",
     .help = "length of a step up"},
    {"ascent.eps", AD_KEY_NUMBER, .offset = AT(ascent_epsilon), .least = 0, .most = 1, .open_least = 1,
     .fallback = "1e-8", .help = "Adam's guard against division by zero"},
    {"comm_dtype.values", AD_KEY_DTYPE, .offset = AT(comm_dtype_values), .word = "compute", .fallback = "compute",
     .help = "dtype in which importances go to other ranks: compute (as they are) or a dtype"},
    {"comm_dtype.gradients", AD_KEY_DTYPE, .offset = AT(comm_dtype_gradients), .word = "compute", .fallback = "compute",
     .help = "dtype in which gradients go to other ranks"},
    {"comm_dtype.weights", AD_KEY_DTYPE, .offset = AT(comm_dtype_weights), .word = "compute", .fallback = "compute",
     .help = "dtype in which components go to the adversary"}};

/* ---- reading and checking the sites ---- */

static int64_t components_of(const ad_decompose_options *options, const char *name) {
  int64_t components = 0;
  for (size_t i = 0; i < options->match_count && i < options->components_count; i++)
    if (!fnmatch(options->matches[i], name, 0)) components = options->components[i];
  return components;
}

ad_status ad_decompose_sites(const ad_decompose_options *options, const ad_mesh *mesh, ad_site **out, size_t *count) {
  ad_site *sites;
  size_t all, kept = 0;
  AD_TRY(ad_target_list(&options->target, mesh, &sites, &all));
  for (size_t i = 0; i < all; i++) {
    sites[kept] = sites[i];
    sites[kept].components = components_of(options, sites[i].name);
    kept += sites[kept].components > 0;
  }
  *out = sites;
  *count = kept;
  return AD_OK;
}

static size_t matched_by(const char *pattern, const ad_site *sites, size_t count) {
  size_t matched = 0;
  for (size_t i = 0; i < count; i++) matched += !fnmatch(pattern, sites[i].name, 0);
  return matched;
}

static const char *first_to_match(const ad_decompose_options *options, size_t before, const char *name) {
  for (size_t i = 0; i < before; i++)
    if (!fnmatch(options->matches[i], name, 0)) return options->matches[i];
  return NULL;
}

static void check_pattern(const ad_decompose_options *options, size_t pattern, const ad_site *sites, size_t count,
                          const ad_complaints *to) {
  const char *match = options->matches[pattern];
  if (!matched_by(match, sites, count))
    ad_complain(to, "sites",
                "the pattern \"%s\" matches no matrix of the target, whose matrices are %s to %s; correct its `match`",
                match, sites[0].name, sites[count - 1].name);
  for (size_t i = 0; i < count; i++) {
    const char *other = first_to_match(options, pattern, sites[i].name);
    if (fnmatch(match, sites[i].name, 0) || !other) continue;
    ad_complain(to, "sites",
                "the matrix %s is matched by two patterns, \"%s\" and \"%s\"; let only one match each matrix",
                sites[i].name, other, match);
    return;
  }
}

/* ---- checking meshes and values together ---- */

static void check_axes(const char *key, const ad_mesh *mesh, int may_have_blocks, const ad_complaints *to) {
  ad_axes others = ad_mesh_named(mesh) & ~(AD_AXES_DP | (may_have_blocks ? AD_AXES(AD_BLOCK) : 0u));
  char axes[128];
  if (others)
    ad_complain(to, key, "a mesh of decompose may have only the axes dp%s; leave out %s",
                may_have_blocks ? " and block" : "", ad_axes_print(others, axes, sizeof axes));
}

static void check_blocks(const ad_mesh *mesh, size_t sites, const ad_complaints *to) {
  int64_t blocks = ad_mesh_axis_size(mesh, AD_BLOCK);
  ad_mesh *block;
  ad_status status = ad_mesh_create_block(mesh, 0, &block);
  if (status)
    ad_complain_of(to, "mesh.blocks", status);
  else
    ad_mesh_destroy(block);
  if (sites && (int64_t)sites < blocks)
    ad_complain(
        to, "mesh.blocks",
        "has %lld blocks for %zu decomposed %s, but each block needs at least one matrix; set a smaller block=N",
        (long long)blocks, sites, sites == 1 ? "matrix" : "matrices");
}

static void check_heads(const ad_decompose_options *options, const ad_complaints *to) {
  long long width = options->importance_d_model, heads = options->importance_heads;
  if (width > 0 && heads > 0 && (width % heads || width / heads % 2))
    ad_complain(
        to, "importance.heads",
        "%lld heads must divide importance.d_model, %lld, into parts of an even width; change one of the two keys",
        heads, width);
}

static void check_word(const char *key, const char *word, const char *a, const char *b, const ad_complaints *to) {
  if (word && strcmp(word, a) != 0 && strcmp(word, b) != 0)
    ad_complain(to, key, "must be %s or %s, but is '%s'", a, b, word);
}

static void check_words(const ad_decompose_options *options, const ad_complaints *to) {
  check_word("losses.stochastic.divergence", options->divergence, "mse", "kl", to);
  check_word("ascent.rule", options->ascent_rule, "adam", "sign", to);
  check_word("ascent.scope", options->ascent_scope, "sample", "batch", to);
  check_word("ascent.bounds", options->ascent_bounds, "clamp", "sigmoid", to);
}

static void check_target(const ad_decompose_options *options, const ad_complaints *to) {
  if (options->target_steps <= 0) return;
  if (options->weights)
    ad_complain(to, "target.weights",
                "the target is read from target.weights or trained for target.steps, but both keys are set; leave one "
                "of the two out");
  if (options->target_warmup > options->target_steps)
    ad_complain(to, "target.warmup",
                "is %lld, but must be at most target.steps %lld; set target.warmup to %lld or less, or target.steps to "
                "%lld or more",
                (long long)options->target_warmup, (long long)options->target_steps, (long long)options->target_steps,
                (long long)options->target_warmup);
}

/* Checks anneal_from and anneal_to. If the recipe gives only one of the two keys (the other has its default, 0 or 1),
 * complains at the key that it gives. The two values may be equal if the power does not change. */
static void check_annealing(const ad_decompose_options *options, const ad_complaints *to) {
  double from = options->anneal_from, arrived = options->anneal_to;
  if (from < arrived || (from == arrived && options->last_power <= 0)) return;
  if (arrived < 1)
    ad_complain(to, "losses.sparsity.anneal_to", "is %g, but must be above anneal_from %g; change one of the two keys",
                arrived, from);
  else
    ad_complain(to, "losses.sparsity.anneal_from", "is %g, but must be below anneal_to %g; change one of the two keys",
                from, arrived);
}

static void check_coefficients(const ad_decompose_options *options, const ad_complaints *to) {
  double sum = options->faithfulness + options->stochastic + options->sparsity + options->adversarial;
  if (sum == 0)
    ad_complain(to, "losses", "all coefficients are 0, so nothing would be trained; set at least one above 0");
}

static int has_sizes(const ad_decompose_options *options) {
  const ad_decoder_options *decoder = &options->target.decoder;
  return decoder->layers > 0 && decoder->d_model > 0 && decoder->heads > 0 && decoder->kv_heads >= 0 &&
         decoder->head_dim >= 0 && (!decoder->rotary_scaling_count || decoder->rotary_scaling_count == 4);
}

static void check_sites(const ad_decompose_options *options, const ad_mesh *blocks, const ad_complaints *to) {
  ad_site *sites = NULL;
  ad_mesh *one = NULL;
  size_t all = 0, kept = 0;
  if (!has_sizes(options)) return;
  if (options->match_count != options->components_count) {
    ad_complain(to, "sites", "%zu sites have `match` and %zu have `components`, but each site needs these two keys",
                options->match_count, options->components_count);
    return;
  }
  if (!options->match_count)
    ad_complain(to, "sites",
                "there is no site; give at least one, such as {match: \"blocks.*.attn.wq\", components: 8}");
  ad_status status = ad_mesh_create("", &one);
  if (!status) status = ad_target_list(&options->target, one, &sites, &all);
  if (status == AD_MEMORY) ad_complain_of(to, "sites", status);
  if (!status) {
    for (size_t i = 0; i < options->match_count; i++)
      if (options->matches[i]) check_pattern(options, i, sites, all, to);
    for (size_t i = 0; i < all; i++) kept += components_of(options, sites[i].name) > 0;
    check_blocks(blocks, kept, to);
  }
  ad_release(sites);
  ad_mesh_destroy(one);
}

void ad_decompose_check(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                        const ad_complaints *to) {
  const ad_decompose_options *own = options;
  ad_decoder_check("decompose", "mesh.ci", &own->target.decoder, meshes[0], to);
  ad_text_check(&own->target.decoder.data, to);
  check_axes("mesh.ci", meshes[0], 0, to);
  check_axes("mesh.blocks", meshes[1], 1, to);
  check_axes("mesh.adv", meshes[2], 0, to);
  check_heads(own, to);
  check_words(own, to);
  check_coefficients(own, to);
  check_target(own, to);
  check_annealing(own, to);
  check_sites(own, meshes[1], to);
}

const char *ad_decompose_not_smooth(const void *options) {
  const ad_decompose_options *own = options;
  if (own->ascent_steps && own->adversarial > 0)
    return "the adversary's sources climb in between; add --set ascent.steps=0 --set model.plain_clamp=true";
  return own->plain_clamp ? NULL : "the clamp's backward is not its slope; add --set model.plain_clamp=true";
}

void ad_decompose_check_files(const void *options, const ad_complaints *to) {
  const ad_decompose_options *own = options;
  const ad_decoder_options *decoder = &own->target.decoder;
  ad_text_check_files(&decoder->data, ad_decoder_vocabulary(decoder), to);
  if (!own->weights || !has_sizes(own)) return;
  ad_status status = ad_target_check_file(&own->target, own->weights);
  if (status) ad_complain_of(to, "target.weights", status);
}
