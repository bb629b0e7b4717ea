/* Recipes: YAML files that name a model, data, mesh, precision and schedule. Read and checked as a whole before any
 * rank starts; all mistakes are reported at once, each with its line. */
#ifndef ADDEND_RECIPE_H
#define ADDEND_RECIPE_H
#include "addend/model.h"

#if defined(__cplusplus)
extern "C" {
#endif

enum { AD_MICROBATCHES_MAX = 1024 };

typedef struct ad_recipe_override {
  char *pattern;        /* glob over parameter names */
  ad_contract contract; /* zero fields: as in precision */
} ad_recipe_override;

/* Every key of a recipe, with defaults filled in. Strings and lists belong to the recipe. */
typedef struct ad_recipe {
  char *path; /* of the file */
  char *name;
  struct {
    char *kind; /* "gpt"; more to come */
    int64_t layers, d_model, heads, d_hidden;
    int tied;
    double rotary_base;
    char *weights; /* safetensors file of initial values; NULL: drawn from the seed */
  } model;
  struct {
    char **text;
    size_t text_count;
    int64_t seq;
    double *valid;
    size_t valid_count;
    double held_out;
  } data;
  char *mesh;  /* mesh string */
  char *views; /* reserved for expert parallelism: "" */
  struct {
    ad_contract contract; /* zero fields: defaults of the contract */
    ad_dtype compute;     /* f32 or f64 */
    int64_t loss_scale;   /* first exponent of the dynamic loss scale; used where a contract has f16 gradients */
    ad_recipe_override *overrides;
    size_t override_count;
  } precision;
  struct {
    int64_t zero;
    double bucket_mib;
    int64_t prefetch;
  } shard;
  struct {
    int64_t global_batch, microbatches, steps;
    double lr, final_lr_fraction, clip, beta1, beta2, epsilon, weight_decay;
    int64_t warmup;
    int64_t seed;
    ad_sync *sync; /* one per microbatch */
    size_t sync_count;
  } train;
  struct {
    int64_t every, keep; /* steps between checkpoints, 0: none; how many stay */
  } checkpoint;
} ad_recipe;

/* Reads `path`, applies `sets` ("PATH=VALUE", --set) in order, checks everything. On AD_INVALID or AD_IO
 * ad_last_error() holds all messages, one a line: "gpt.yaml:7: train.microbatches: must be at least 1, is 0". */
AD_API AD_CHECKED ad_status ad_recipe_read(const char *path, const char *const *sets, size_t set_count,
                                           ad_recipe **out);
/* The same from text; `path` is only named in messages. */
AD_API AD_CHECKED ad_status ad_recipe_parse(const char *text, const char *path, const char *const *sets,
                                            size_t set_count, ad_recipe **out);
AD_API void ad_recipe_destroy(ad_recipe *recipe);
/* The recipe as YAML with every key and its value. Caller frees with free(). */
AD_API AD_CHECKED ad_status ad_recipe_print(const ad_recipe *recipe, char **out);
/* The mesh and the model that it names. */
AD_API AD_CHECKED ad_status ad_recipe_mesh(const ad_recipe *recipe, ad_mesh **out);
AD_API AD_CHECKED ad_status ad_recipe_model(const ad_recipe *recipe, const ad_mesh *mesh, ad_model **out);
/* The contract of one parameter: precision, then every matching override in order, completed. */
AD_API AD_CHECKED ad_status ad_recipe_contract(const ad_recipe *recipe, const char *param, ad_contract *out);

/* Where a parameter is kept: cut along its first dimension over the axes that its layer names
 * (`sharded`), whatever its size, from ZeRO-1 on. */
AD_API ad_layout ad_recipe_storage(const ad_recipe *recipe, const ad_param_spec *spec);

#if defined(__cplusplus)
}
#endif
#endif
