/* The architectures of Hugging Face Transformers that programs can compute, as tables: which recipe key each key of
 * config.json sets, and which tensor has the values of each parameter. Import and export read the same tables. */
#ifndef ARCHITECTURE_ARCHITECTURE_H
#define ARCHITECTURE_ARCHITECTURE_H
#include <stddef.h>
#include <stdint.h>

/* What addend does with a key of config.json. */
typedef enum ad_config_use {
  AD_CONFIG_GIVES,  /* the key's value becomes the value of a recipe key */
  AD_CONFIG_MUST,   /* the key must have the only value that addend computes */
  AD_CONFIG_PASSED, /* the key is ignored, because it changes no number */
  AD_CONFIG_ROTARY, /* the key contributes to model.rotary_base and model.rotary_scaling; see rotary.c */
  AD_CONFIG_WINDOW, /* the key describes a sliding window; see window.c */
  AD_CONFIG_BIAS    /* the key contributes to model.bias */
} ad_config_use;

/* One key of config.json, and what addend does with it. Values are written as JSON. */
typedef struct ad_config_row {
  const char *key; /* if there are two names, as in "num_experts|num_local_experts", either is read, and an export
                    * writes the first */
  ad_config_use use;
  const char *gives; /* the recipe key that is set (AD_CONFIG_GIVES) */
  const char *must;  /* the only value that is accepted (AD_CONFIG_MUST), or the value that an export writes
                      * (AD_CONFIG_WINDOW) */
  /* The value that Transformers uses if the key is missing or null. NULL: the key is required (AD_CONFIG_GIVES) or
   * optional (other uses). */
  const char *absent;
} ad_config_row;

/* A value of a recipe key that an architecture implies, without any key in config.json. */
typedef struct ad_architecture_fact {
  const char *key, *value; /* the recipe key and its value */
} ad_architecture_fact;

/* A parameter of addend, and the tensor in a file that has its values. '#' is the number of a block, '@' that of an
 * expert: such a parameter joins the matrices of all experts along a new first dimension. */
typedef struct ad_tensor_row {
  const char *param;  /* "blocks.#.attn.wq" */
  const char *tensor; /* "model.layers.#.self_attn.q_proj.weight" */
  int is_transposed;  /* 1: the file's matrix is [out, in] and the parameter's is [in, out] */
} ad_tensor_row;

enum { AD_ARCHITECTURE_PARTS = 4 };
/* One architecture. Each list ends with an element of zeros; `config` and `tensors` consist of several lists. */
typedef struct ad_architecture {
  const char *name;        /* "LlamaForCausalLM", as in `architectures` of config.json */
  const char *model_type;  /* "llama" */
  const char *rotary_base; /* the base of the rotary frequencies if config.json has none, as JSON */
  int64_t window;          /* the width of the sliding window if config.json has no sliding_window; 0: no window */
  int has_window_switch;   /* 1: the window is used only if use_sliding_window is true */
  int has_attention_bias, has_mlp_bias; /* 1: a key of config.json decides whether there are biases */
  const ad_architecture_fact *facts;
  const ad_config_row *config[AD_ARCHITECTURE_PARTS];
  const ad_tensor_row *tensors[AD_ARCHITECTURE_PARTS];
} ad_architecture;

/* The architectures, each defined in the file of its family. */
extern const ad_architecture ad_llama, ad_mistral, ad_qwen2, ad_qwen3, ad_mixtral, ad_qwen3_moe;
/* Tables that several architectures share. */
extern const ad_config_row ad_config_of_decoders[], ad_config_passed[];
extern const ad_tensor_row ad_tensors_of_decoders[], ad_tensors_of_mlp[];

/* All architectures, in the order in which an export tries them; NULL at the end. */
const ad_architecture *const *ad_architectures(void);
const ad_architecture *ad_architecture_find(const char *name); /* returns NULL if no architecture has this name */
const char *ad_architectures_known(char *buffer, size_t size); /* writes "LlamaForCausalLM, ... or ..." and returns
                                                                * buffer */

#endif
