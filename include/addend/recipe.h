/* Recipes: YAML files that name a model, data, mesh, precision and schedule. Read and checked as a whole before any
 * rank starts; all mistakes are reported at once, each with its line. */
#ifndef ADDEND_RECIPE_H
#define ADDEND_RECIPE_H
#include "addend/program.h"

#if defined(__cplusplus)
extern "C" {
#endif

enum { AD_MICROBATCHES_MAX = 1024 };

typedef struct ad_recipe_override {
  char *pattern;        /* glob over parameter names */
  ad_contract contract; /* zero fields: as in precision */
} ad_recipe_override;

/* Of a recipe's modules: all on the same ranks, or each on ranks of its own, one mesh after another. */
#define AD_COLOCATED "colocated"
#define AD_DISJOINT "disjoint"

/* The mesh of one module. */
typedef struct ad_recipe_mesh {
  char *module; /* NULL where the program has one module and the recipe gives its mesh as a text */
  char *text;
} ad_recipe_mesh;

/* Every key of a recipe, with defaults filled in. Strings and lists belong to the recipe. */
typedef struct ad_recipe {
  char *path; /* of the file */
  char *name;
  char *kind;                     /* model.kind */
  const ad_program_kind *program; /* of that name */
  void *options;                  /* the program's: program->options_size bytes */
  char *from;    /* model.from: folder of a model that Transformers saved, see ad_run_read_weights; NULL: none */
  char *weights; /* model.weights: path of initial values, see ad_run_read_weights; NULL: drawn from the seed */
  ad_recipe_mesh *meshes; /* one for each module of the program, in its order */
  size_t mesh_count;
  char *placement; /* of several modules: AD_COLOCATED or AD_DISJOINT; NULL where the program has one */
  struct {
    ad_contract contract; /* zero fields: defaults of the contract */
    ad_dtype compute;     /* f32, f64 or bf16 */
    ad_dtype residual;    /* of the residual stream: 0 (the wide one of compute), or compute */
    int64_t loss_scale;   /* first exponent of the dynamic loss scale; used where a contract has f16 gradients */
    ad_recipe_override *overrides;
    size_t override_count;
  } precision;
  struct {
    int64_t zero;
    double bucket_mib;
    int64_t window; /* 0: as many slots as do not wait for each other */
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
    int64_t samples, every; /* of the held-out set; steps between evaluations, 0: about ten in a run */
    char **prompts;         /* texts, or numbers of tokens, that each evaluation goes on with */
    size_t prompt_count;
    int64_t prompt_tokens; /* with how many tokens */
  } evaluate;
  struct {
    int64_t every, keep; /* steps between checkpoints, 0: none; how many stay */
  } checkpoint;
  /* The schedule of a pipeline; only programs with stages have it. */
  struct {
    char *kind;      /* of the schedules of schedule.h; NULL: see ad_recipe_schedule */
    int64_t stages;  /* 0: as many as the mesh's axis pp */
    int64_t *layers; /* of each stage; NULL: cut by the cost of their products */
    size_t layer_count;
  } schedule;
  char **given; /* paths of the keys that the file or --set gives, in the order of ad_recipe_print */
  size_t given_count;
} ad_recipe;

/* Reads `path`, applies `sets` ("PATH=VALUE", --set) in order, checks everything: also that the text is there, and that
 * model.weights has every parameter in its shape, finite, which reads those files once. On AD_INVALID or AD_IO
 * ad_last_error() holds all messages, one a line: "gpt.yaml:7: train.microbatches: must be at least 1, is 0". */
AD_API AD_CHECKED ad_status ad_recipe_read(const char *path, const char *const *sets, size_t set_count,
                                           ad_recipe **out);
/* The same for what is planned and not run: of model.from config.json and the headers alone are read. */
AD_API AD_CHECKED ad_status ad_recipe_read_on_paper(const char *path, const char *const *sets, size_t set_count,
                                                    ad_recipe **out);
/* The same from text; `path` is only named in messages. No file that it names is looked at: a recipe with model.from
 * has every key that it needs, as ad_recipe_print writes them. */
AD_API AD_CHECKED ad_status ad_recipe_parse(const char *text, const char *path, const char *const *sets,
                                            size_t set_count, ad_recipe **out);
AD_API void ad_recipe_destroy(ad_recipe *recipe);
/* The recipe as YAML with every key and its value. Caller frees with free(). */
AD_API AD_CHECKED ad_status ad_recipe_print(const ad_recipe *recipe, char **out);
/* The mesh key as one text: the mesh string, or "{encoder: dp=4, model: dp=2 cp=2}". Returns buffer. */
AD_API const char *ad_recipe_mesh_text(const ad_recipe *recipe, char *buffer, size_t size);
/* The recipe of the training that comes before its own (ad_program_kind.pretraining), on the same ranks, all of them
 * data-parallel; *out is NULL where there is none. */
AD_API AD_CHECKED ad_status ad_recipe_pretraining(const ad_recipe *recipe, ad_recipe **out);
/* What PATH of --set may be, in the recipe of any program that there is: a path a line, each once. Caller frees with
 * free(). */
AD_API AD_CHECKED ad_status ad_recipe_keys(char **out);
/* The schedule of its pipeline by name: schedule.kind or, where that is left out, "interleaved" where a rank has
 * several stages and else "1f1b". */
AD_API const char *ad_recipe_schedule(const ad_recipe *recipe);
/* How many ranks it runs on. */
AD_API AD_CHECKED ad_status ad_recipe_world(const ad_recipe *recipe, int64_t *out);

#if defined(__cplusplus)
}
#endif
#endif
