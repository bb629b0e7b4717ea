/* The architectures of Hugging Face Transformers that programs compute, as tables: the meaning of each key of
 * config.json for a recipe, and the tensors that have the values of each parameter. Import and export read the same
 * tables. */
#ifndef ARCHITECTURE_ARCHITECTURE_H
#define ARCHITECTURE_ARCHITECTURE_H
#include <stddef.h>
#include <stdint.h>

/* What addend does with a key of config.json. */
typedef enum ad_config_use {
  AD_CONFIG_GIVES,  /* the key's value becomes that of a recipe's key */
  AD_CONFIG_MUST,   /* the key must have the one value that addend computes */
  AD_CONFIG_PASSED, /* the key is ignored, since it changes no number */
  AD_CONFIG_ROTARY, /* the key is a part of model.rotary_base and model.rotary_scaling; see rotary.c */
  AD_CONFIG_WINDOW, /* the key is a part of a sliding window; see window.c */
  AD_CONFIG_BIAS    /* the key is a part of model.bias */
} ad_config_use;

/* One key of config.json. Values are written as JSON. */
typedef struct ad_config_row {
  const char *key; /* "num_experts|num_local_experts": either name is read; the first is written */
  ad_config_use use;
  const char *gives; /* the recipe's key (AD_CONFIG_GIVES) */
  const char *must;  /* the only value (AD_CONFIG_MUST), or the one that an export writes (AD_CONFIG_WINDOW) */
  /* The value that Transformers uses if the key is missing or null. NULL: the key must be there (AD_CONFIG_GIVES),
   * or may be missing (other uses). */
  const char *absent;
} ad_config_row;

/* A value of a recipe's key that is fixed for an architecture, without any key in its config.json. */
typedef struct ad_architecture_fact {
  const char *key, *value; /* the recipe's key, and its value */
} ad_architecture_fact;

/* A parameter of addend's and the tensor with its values. '#' is the number of the block. '@' is the number of an
 * expert: one parameter joins the matrices of all experts along a new first dimension. */
typedef struct ad_tensor_row {
  const char *param;  /* "blocks.#.attn.wq" */
  const char *tensor; /* "model.layers.#.self_attn.q_proj.weight" */
  int is_transposed;  /* 1: the tensor's matrix is [out, in], the parameter's [in, out] */
} ad_tensor_row;

enum { AD_ARCHITECTURE_PARTS = 4 };
/* One architecture. Lists end with an element of zeros; `config` and `tensors` have several lists each. */
typedef struct ad_architecture {
  const char *name;        /* "LlamaForCausalLM", as in `architectures` of config.json */
  const char *model_type;  /* "llama" */
  const char *rotary_base; /* the base of the rotary frequencies where config.json has none, as JSON */
  int64_t window;          /* the width of the sliding window where config.json has no sliding_window; 0: none */
  int has_window_switch;   /* 1: there is a window only where use_sliding_window is true */
  int has_attention_bias, has_mlp_bias; /* 1: config.json says whether there are biases */
  const ad_architecture_fact *facts;
  const ad_config_row *config[AD_ARCHITECTURE_PARTS];
  const ad_tensor_row *tensors[AD_ARCHITECTURE_PARTS];
} ad_architecture;

/* The families; each has its own file. */
extern const ad_architecture ad_llama, ad_mistral, ad_qwen2, ad_qwen3, ad_mixtral, ad_qwen3_moe;
/* Tables that the families share. */
extern const ad_config_row ad_config_of_decoders[], ad_config_passed[];
extern const ad_tensor_row ad_tensors_of_decoders[], ad_tensors_of_mlp[];

/* All architectures, in the order in which an export tries them; NULL at the end. */
const ad_architecture *const *ad_architectures(void);
const ad_architecture *ad_architecture_find(const char *name); /* NULL: no such architecture */
const char *ad_architectures_known(char *buffer, size_t size); /* "LlamaForCausalLM, ... or ..."; returns buffer */

#endif
