/* Finds what frozen parameters make unnecessary: the backward of phases without gradients, and the way back of the
 * gradients of what these phases give. */
#include "base/error.h"
#include "base/memory.h"
#include "program/program.h"

int ad_program_has_frozen(const ad_program *program) { return program->learns != NULL; }

int ad_program_phase_learns(const ad_program *program, size_t phase) {
  return !program->learns || program->learns[phase];
}

static int module_has_frozen(const ad_module_spec *module) {
  for (size_t i = 0; i < module->param_count; i++)
    if (module->params[i].frozen) return 1;
  return 0;
}

static int has_frozen(const ad_program *program) {
  for (size_t m = 0; m < program->module_count; m++)
    if (module_has_frozen(&program->modules[m].spec)) return 1;
  return 0;
}

/* Returns 1 if a phase of the module may have gradients of its own. A module without parameters may: of states, which
 * its phases change by the gradients of their own inputs. */
static int module_learns(const ad_module_spec *module) {
  for (size_t i = 0; i < module->param_count; i++)
    if (!module->params[i].frozen) return 1;
  return !module->param_count;
}

static int needs_learning(const ad_program *program, const ad_phase *phase) {
  for (const char *const *need = phase->needs; need && *need; need++)
    if (program->learns[ad_program_giver(program, *need)]) return 1;
  return 0;
}

ad_status ad_program_settle_frozen(ad_program *program) {
  if (!has_frozen(program)) return AD_OK;
  AD_TRY(ad_new(program->phase_count, &program->learns));
  for (size_t p = 0; p < program->phase_count; p++) {
    const ad_phase *phase = &program->phases[p];
    program->learns[p] =
        phase->after || module_learns(ad_program_module(program, phase->module)) || needs_learning(program, phase);
  }
  for (size_t i = 0; i < program->transfer_count; i++)
    if (!program->transfers[i].one_way && !program->learns[ad_program_giver(program, program->transfers[i].value)])
      program->transfers[i].one_way = AD_ONE_WAY_FROZEN;
  return AD_OK;
}
