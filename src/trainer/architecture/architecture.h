/* Architectures of Hugging Face Transformers that addend's programs compute, as tables: what the keys of a config.json
 * mean for a recipe, and where the values of a parameter stand in the files. Both are read in both directions. */
#ifndef ARCHITECTURE_ARCHITECTURE_H
#define ARCHITECTURE_ARCHITECTURE_H
#include <stddef.h>

/* What becomes of a key of config.json. */
typedef enum ad_config_use {
  AD_CONFIG_GIVES,  /* its value is that of a recipe's key */
  AD_CONFIG_MUST,   /* it has one value, which is what addend computes */
  AD_CONFIG_EACH,   /* the same of each element of its list */
  AD_CONFIG_PASSED, /* it changes no number */
  AD_CONFIG_ROTARY, /* one of those that model.rotary_base and model.rotary_scaling are made of */
  AD_CONFIG_BIAS    /* one of those that model.bias is made of */
} ad_config_use;

/* Values are written as JSON. */
typedef struct ad_config_row {
  const char *key; /* "num_experts|num_local_experts": either will do, the first is written */
  ad_config_use use;
  const char *gives;  /* the recipe's key */
  const char *must;   /* the one value */
  const char *absent; /* what Transformers takes where the key is missing or null; NULL: nothing that could differ, and
                         of AD_CONFIG_GIVES: it must be there */
} ad_config_row;

/* What an architecture has that no key of its config.json says. */
typedef struct ad_architecture_fact {
  const char *key, *value; /* of the recipe */
} ad_architecture_fact;

/* One parameter of addend's and the tensor with its values. '#' stands for the number of the block, '@' for that of an
 * expert: the matrices of all experts, joined along a first dimension, are one parameter. */
typedef struct ad_tensor_row {
  const char *param;  /* "blocks.#.attn.wq" */
  const char *tensor; /* "model.layers.#.self_attn.q_proj.weight" */
  int is_turned;      /* the tensor's matrix is [out, in], the parameter's [in, out] */
} ad_tensor_row;

enum { AD_ARCHITECTURE_PARTS = 4 };
/* Lists end with an element of zeros; of each there may be several. */
typedef struct ad_architecture {
  const char *name;                     /* "LlamaForCausalLM": in `architectures` of config.json */
  const char *model_type;               /* "llama" */
  const char *kind;                     /* of addend's program */
  const char *rotary_base;              /* the slowest rotation where config.json has none, as JSON */
  int has_attention_bias, has_mlp_bias; /* config.json says whether there are biases */
  const ad_architecture_fact *facts;
  const ad_config_row *config[AD_ARCHITECTURE_PARTS];
  const ad_tensor_row *tensors[AD_ARCHITECTURE_PARTS];
} ad_architecture;

/* The families, each in a file of its own. */
extern const ad_architecture ad_llama, ad_mistral, ad_qwen2, ad_qwen3, ad_mixtral, ad_qwen3_moe;
/* What they share. */
extern const ad_config_row ad_config_of_decoders[], ad_config_passed[];
extern const ad_tensor_row ad_tensors_of_decoders[], ad_tensors_of_mlp[];

/* In the order in which an export tries them; NULL at the end. */
const ad_architecture *const *ad_architectures(void);
const ad_architecture *ad_architecture_find(const char *name); /* NULL: there is none */
const char *ad_architectures_known(char *buffer, size_t size); /* "LlamaForCausalLM, ... or ..."; returns buffer */

#endif
