/* The list of architectures. */
#include "architecture/architecture.h"

#include <string.h>
#include "base/text.h"

static const ad_architecture *const all[] = {&ad_llama,   &ad_qwen2,     &ad_qwen3, &ad_mistral,
                                             &ad_mixtral, &ad_qwen3_moe, NULL};

const ad_architecture *const *ad_architectures(void) { return all; }

const ad_architecture *ad_architecture_find(const char *name) {
  const ad_architecture *const *at = all;
  while (*at && strcmp((*at)->name, name) != 0) at++;
  return *at;
}

const char *ad_architectures_known(char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  for (size_t i = 0; all[i]; i++) ad_text_add(&text, "%s%s", !i ? "" : all[i + 1] ? ", " : " or ", all[i]->name);
  return buffer;
}
