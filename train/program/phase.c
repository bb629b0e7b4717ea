/* The run of one phase in a microbatch, as the program's own function sees it: its tape and parameters, the values that
 * it needs and gives, and its losses. */
#include <math.h>
#include <string.h>
#include "base/error.h"
#include "bridge/bridge.h"
#include "module/module.h"
#include "program/program.h"
#include "tensor/tape.h"

static const ad_phase *phase_of(const ad_phase_run *at) { return &at->program->phases[at->phase]; }

ad_tape *ad_phase_tape(ad_phase_run *at) { return at->tape; }
size_t ad_phase_microbatch(const ad_phase_run *at) { return at->microbatch; }

size_t ad_phase_module(const ad_phase_run *at) { return phase_of(at)->module; }
int ad_phase_trains(const ad_phase_run *at) { return at->trains; }
int ad_phase_discards(const ad_phase_run *at) { return at->discards; }
double ad_phase_loss_scale(const ad_phase_run *at) { return ldexp(1, at->loss_scale); }

const ad_parameters *ad_phase_parameters(ad_phase_run *at) { return at->parameters; }
ad_array *ad_phase_state(ad_phase_run *at, size_t state) { return ad_module_state(at->module, state); }

static const char no_name[] = "NULL";

/* Puts a value that came from other ranks on the phase's tape. All replicas of the value are equal. If the program wants
 * no gradient, it is a constant. Otherwise it becomes R on the axes along which the bridge sums the gradient, so that
 * each rank leaves an addend; the site of this conversion is the value's name. It does so too if frozen parameters leave
 * no gradient, because freezing a parameter changes no types. */
static ad_tensor *take_arrived(ad_phase_run *at, ad_passed_value *passed, const ad_transfer_spec *transfer) {
  const ad_array *array = passed->arrived;
  int is_frozen = transfer->one_way == AD_ONE_WAY_FROZEN;
  if (transfer->one_way && !is_frozen) return passed->inputs[at->place] = ad_constant(at->tape, array);
  ad_tensor *leaf = passed->inputs[at->place] =
      is_frozen ? ad_frozen_input(at->tape, array, AD_HERE)
                : ad_input_with(at->tape, array, ad_transfer_dtype(at->program, transfer, 1), AD_HERE);
  ad_axes added = ad_bridge_added(transfer->bridge);
  char axes[128];
  if (!added) return leaf;
  return ad_move_at(at->tape, leaf, AD_MOVE_CONVERT, ad_axes_print(added, axes, sizeof axes), AD_R, transfer->value);
}

/* Transfers a value of another phase of this rank over its bridge, with the same roundings as between ranks. So the
 * program's numbers are the same, up to f32's rounding, on whatever ranks its modules are. */
static ad_tensor *transfer_leaf(ad_phase_run *at, ad_tensor *leaf, const ad_transfer_spec *transfer) {
  double *overflow = at->overflows ? at->overflows + 2 * (transfer - at->program->transfers) : NULL;
  transfer_rounding comm_dtype = {transfer->comm_dtype, transfer->gradient_comm_dtype, ldexp(1, at->comm_scale),
                                  overflow};
  if (at->rounds && (comm_dtype.value || comm_dtype.gradient))
    leaf = ad_comm_round_at(at->tape, leaf, &comm_dtype, transfer->value);
  return ad_transfer_tensor_at(at->tape, leaf, transfer->bridge, transfer->value);
}

/* Puts a value that another phase of this rank gave on this phase's tape. */
static ad_tensor *take_given(ad_phase_run *at, ad_passed_value *passed, const ad_transfer_spec *transfer) {
  const ad_array *array = ad_tensor_array(passed->output);
  ad_tensor *leaf = passed->output->carries     ? ad_input_with(at->tape, array, passed->output->grad_dtype, AD_HERE)
                    : passed->output->is_frozen ? ad_frozen_input(at->tape, array, AD_HERE)
                                                : ad_constant(at->tape, array);
  passed->inputs[at->place] = leaf;
  return transfer ? transfer_leaf(at, leaf, transfer) : leaf;
}

ad_tensor *ad_phase_need(ad_phase_run *at, const char *name) {
  if (!name) name = no_name;
  size_t value = ad_program_find_value(at->program, name);
  if (value == at->program->value_count || !ad_phase_lists(phase_of(at)->needs, name)) {
    return ad_tape_fail(
        at->tape,
        ad_fail(AD_INVALID,
                "phase `%s` asks for the value `%s`, which its `needs` does not list; add the value to `needs`",
                phase_of(at)->name, name));
  }
  ad_passed_value *passed = &at->values[value];
  if (!passed->output && !passed->arrived) {
    return ad_tape_fail(at->tape, ad_fail(AD_INVALID,
                                          "phase `%s` asks for the value `%s`, which no phase gave in this microbatch; "
                                          "give the value (ad_phase_give) in an earlier phase",
                                          phase_of(at)->name, name));
  }
  if (!passed->inputs[at->place]) {
    ad_status status = passed->arrived && at->wait ? at->wait(at->run, value, at->microbatch) : AD_OK;
    if (status) return ad_tape_fail(at->tape, status);
    const ad_transfer_spec *transfer = ad_program_transfer_of(at->program, value, phase_of(at)->module);
    passed->needed[at->place] = passed->arrived ? take_arrived(at, passed, transfer) : take_given(at, passed, transfer);
  }
  return passed->needed[at->place];
}

ad_status ad_gradient_joins(ad_array *sum, const ad_array *gradient, int *arrived) {
  if ((*arrived)++) return ad_array_add(sum, gradient);
  *sum = *gradient;
  return AD_OK;
}

ad_status ad_passed_gradients(const ad_passed_value *passed, size_t phases, ad_array *sum, int *arrived) {
  for (size_t p = phases; p-- > 0;) {
    const ad_array *gradient = passed->inputs[p] ? ad_grad(passed->inputs[p]) : NULL;
    if (gradient) AD_TRY(ad_gradient_joins(sum, gradient, arrived));
  }
  return AD_OK;
}

/* Checks that a value has the dtypes of its transfer, because ranks that receive the value know its dtypes only from
 * there. */
static ad_status check_transfer(const ad_phase_run *at, const ad_transfer_spec *transfer, const ad_tensor *value) {
  ad_dtype travelling_dtype = ad_transfer_dtype(at->program, transfer, 0),
           gradient = ad_transfer_dtype(at->program, transfer, 1);
  if (value->array.dtype == travelling_dtype && (value->grad_dtype == gradient || !value->carries)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "phase `%s` gives the value `%s` in %s with a gradient in %s, but the transfer of the value is "
                 "declared in %s with a gradient in %s; make the dtypes equal",
                 phase_of(at)->name, transfer->value, ad_dtype_name(value->array.dtype),
                 ad_dtype_name(value->grad_dtype), ad_dtype_name(travelling_dtype), ad_dtype_name(gradient));
}

static ad_status check_transfers(const ad_phase_run *at, const char *name, const ad_tensor *value) {
  const ad_program *program = at->program;
  for (size_t i = 0; i < program->transfer_count; i++)
    if (!strcmp(program->transfers[i].value, name)) AD_TRY(check_transfer(at, &program->transfers[i], value));
  return AD_OK;
}

/* Checks that the phase may give this value now; `found` is the value's index. */
static ad_status check_gift(const ad_phase_run *at, size_t found, const char *name, const ad_tensor *value) {
  const char *phase = phase_of(at)->name;
  if (found == at->program->value_count || !ad_phase_lists(phase_of(at)->gives, name))
    return ad_fail(AD_INVALID,
                   "phase `%s` gives the value `%s`, which its `gives` does not list; add the value to `gives`", phase,
                   name);
  if (!ad_tape_owns(at->tape, value))
    return ad_fail(AD_INVALID,
                   "phase `%s` gives, as the value `%s`, a tensor that this tape did not make: it is %s; give a result "
                   "of this tape",
                   phase, name, ad_tape_foreigner(value));
  if (value->is_forgotten)
    return ad_fail(
        AD_INVALID,
        "phase `%s` gives as `%s` a value whose memory ad_forget gave back; call ad_forget after the last use "
        "of the value",
        phase, name);
  if (at->values[found].output)
    return ad_fail(AD_INVALID, "phase `%s` gives the value `%s` a second time in this microbatch; give it once", phase,
                   name);
  if (!ad_is_parameter(value)) return check_transfers(at, name, value);
  return ad_fail(AD_INVALID,
                 "phase `%s` gives as `%s` a parameter itself, whose memory may be released after each use; give a "
                 "value computed from the parameter (ad_scale by 1 copies it)",
                 phase, name);
}

void ad_phase_give(ad_phase_run *at, const char *name, ad_tensor *value) {
  if (!name) name = no_name;
  size_t found = ad_program_find_value(at->program, name);
  ad_status status = check_gift(at, found, name, value);
  if (status) {
    ad_tape_fail(at->tape, status);
    return;
  }
  ad_tape_lend(value);
  at->values[found].output = value;
}

/* Checks that `numerator` may be this loss's numerator in this microbatch. */
static ad_status check_submitted(const ad_phase_run *at, size_t loss, const ad_tensor *numerator) {
  const ad_program *program = at->program;
  const char *phase = phase_of(at)->name;
  if (loss >= program->loss_count || at->losses[loss].numerator)
    return ad_fail(AD_INVALID, "phase `%s` submits loss number %zu (from 0) of %zu losses, %s", phase, loss,
                   program->loss_count,
                   loss < program->loss_count ? "a second time in this microbatch" : "which does not exist");
  if (!ad_tape_owns(at->tape, numerator))
    return ad_fail(AD_INVALID,
                   "phase `%s` submits, as the loss `%s`, a tensor that this tape did not make: it is %s; submit a "
                   "result of this tape",
                   phase, program->losses[loss].name, ad_tape_foreigner(numerator));
  return ad_check_loss(numerator, program->losses[loss].name);
}

void ad_phase_loss(ad_phase_run *at, size_t loss, ad_tensor *numerator) {
  ad_status status = check_submitted(at, loss, numerator);
  if (status)
    ad_tape_fail(at->tape, status);
  else
    at->losses[loss] = (ad_submitted_loss){.numerator = numerator};
}
