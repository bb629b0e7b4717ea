/* Keys that other programs leave in a config.json and that change no number of a causal language model: how texts
 * are generated, which results are returned beside logits, notes of fine-tuners, and other tasks of a model. */
#include <string.h>
#include "architecture/config_build.h"

static const char *const keys[] = {
    /* keys of GenerationConfig that Transformers once kept in config.json, or still reads there */
    "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "do_sample", "num_beams",
    "num_beam_groups", "diversity_penalty", "length_penalty", "repetition_penalty", "encoder_repetition_penalty",
    "early_stopping", "max_length", "min_length", "max_new_tokens", "min_new_tokens", "max_time", "stop_strings",
    "num_return_sequences", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "force_words_ids",
    "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "decoder_start_token_id",
    "remove_invalid_values", "exponential_decay_length_penalty", "renormalize_logits", "penalty_alpha",
    "guidance_scale", "cache_implementation", "return_dict_in_generate", "prefix", "task_specific_params",
    "generation_config",
    /* keys that decide what is returned, and how it is computed */
    "output_scores", "output_logits", "output_attentions", "output_hidden_states", "use_return_dict", "torchscript",
    "use_bfloat16", "chunk_size_feed_forward", "tie_last_hidden_states", "gradient_checkpointing", "is_decoder",
    "attn_implementation", "_attn_implementation_internal", "experts_implementation", "_flash_attn_2_enabled",
    "_commit_hash", "name_or_path",
    /* keys of special tokens, of the length in training and of other tasks; the width of the embedding is in
     * vocab_size */
    "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id", "model_max_length", "max_sequence_length",
    "max_seq_length", "num_labels", "problem_type", "finetuning_task", "classifier_dropout",
    /* keys that fine-tuners write */
    "unsloth_fixed", "unsloth_version"};
enum { KEYS = sizeof keys / sizeof *keys };

int ad_config_is_harmless(const char *key, const json_t *value) {
  if (!strcmp(key, "loss_type")) return json_is_string(value) && !strcmp(json_string_value(value), "ForCausalLM");
  for (size_t i = 0; i < KEYS; i++)
    if (!strcmp(keys[i], key)) return 1;
  return 0;
}
