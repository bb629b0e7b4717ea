/* The tape: records operations, owns their memory, and keeps the first error. The arithmetic of an operation is in
 * its record (op_*.c), backward in backward.c. */
#include "tensor/tape.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "array/array.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/injection.h"
#include "layout/sentences.h"
#include "layout/type.h"
#include "products/gemm.h"
#include "mesh/mesh.h"

/* ---- memory of a tape ---- */

ad_status ad_tape_take(ad_tape *tape, size_t bytes, void **out) {
  return ad_memory_take(&tape->own, tape->dry, bytes, out);
}

tape_mark ad_tape_mark(const ad_tape *tape) {
  return (tape_mark){ad_arena_mark(tape->values->arena), tape->values->dry_used};
}

void ad_tape_rewind(ad_tape *tape, tape_mark mark) {
  ad_memory_note_peak(tape->values, tape->dry);
  ad_arena_rewind(tape->values->arena, mark.arena);
  tape->values->dry_used = mark.dry;
}

// Takes an operation's scratch memory. If the operation allocates its result itself, scratch comes from the tape's own
// memory, which lasts until the reset.
ad_status ad_tape_take_scratch(ad_tape *tape, ad_tensor *out) {
  if (!out->op->scratch) return AD_OK;
  tape_memory *from = out->op->makes_memory ? &tape->own : tape->values;
  return ad_memory_take(from, tape->dry, out->op->scratch(out), &out->scratch);
}

void ad_tape_take_leaf(ad_tape *tape, const ad_leaf_mesh *meshes, size_t count) {
  tape->leaf_meshes = meshes;
  tape->leaf_mesh_count = count;
}

void ad_tape_note_samples(ad_tape *tape, const ad_sample_losses *to) { tape->samples = to; }

/* ---- creating, resetting and querying a tape ---- */

static ad_status complete_options(const ad_tape_options *options, ad_tape_options *out) {
  ad_tape_options filled;
  AD_TRY(ad_options_take(&filled, sizeof filled, options, "ad_tape_options"));
  if (!filled.dtype) filled.dtype = AD_F32;
  if (filled.dtype != AD_F32 && filled.dtype != AD_F64 && filled.dtype != AD_BF16)
    return ad_fail(AD_INVALID,
                   "tape: the dtype to compute in (`dtype` of ad_tape_options) is %s, but must be f32, f64 or bf16",
                   ad_dtype_name(filled.dtype));
  if (!filled.residual) filled.residual = ad_dtype_wide(filled.dtype);
  if (filled.residual != filled.dtype && filled.residual != ad_dtype_wide(filled.dtype))
    return ad_fail(AD_INVALID,
                   "tape: the dtype of the residual stream (`residual` of ad_tape_options) is %s, but the tape "
                   "computes in %s; set `residual` to that dtype or to %s",
                   ad_dtype_name(filled.residual), ad_dtype_name(filled.dtype),
                   ad_dtype_name(ad_dtype_wide(filled.dtype)));
  *out = filled;
  return AD_OK;
}

ad_status ad_tape_create(ad_comm *comm, const ad_mesh *mesh, const ad_tape_options *options, ad_tape **out) {
  AD_NEED(comm, mesh, out);
  ad_tape_options filled;
  AD_TRY(complete_options(options, &filled));
  if (!ad_mesh_has_rank(mesh, ad_comm_rank(comm)))
    return ad_fail(AD_INVALID,
                   "tape: rank %" PRId64 " is not in the mesh \"%s\"; create the tape only on ranks of the mesh",
                   ad_comm_rank(comm), ad_mesh_text(mesh));
  if (!ad_comm_is_dry(comm)) AD_TRY(ad_gemm_prepare());
  ad_tape *tape;
  AD_TRY(ad_new(1, &tape));
  ad_status status = ad_arena_create(0, &tape->own.arena);
  if (status) {
    ad_release(tape);
    return status;
  }
  tape->comm = comm;
  tape->mesh = mesh;
  tape->options = filled;
  tape->dry = ad_comm_is_dry(comm);
  if (!tape->dry) tape->options.crowd = 0;
  tape->dead.tape = tape;
  tape->values = &tape->own;
  *out = tape;
  return AD_OK;
}

void ad_tape_destroy(ad_tape *tape) {
  if (!tape) return;
  ad_tape_give_all(tape);
  ad_arena_destroy(tape->own.arena);
  ad_release(tape);
}

void ad_tape_reset(ad_tape *tape) {
  ad_tape_give_all(tape);
  ad_memory_note_peak(&tape->own, tape->dry);
  ad_arena_reset(tape->own.arena);
  tape->own.dry_used = 0;
  tape->position = 0;
  tape->last = NULL;
  tape->own.spares = tape->own.records = NULL;
  tape->present = NULL;
  tape->runs_forward = tape->began_last = tape->defers_weights = tape->transitions = tape->reported = 0;
  tape->status = AD_OK;
  tape->message[0] = 0;
}

void ad_tape_continue(ad_tape *tape, int64_t position) {
  if (tape) tape->position = position;
}

ad_status ad_tape_status(const ad_tape *tape) {
  AD_NEED(tape);
  return tape->status ? ad_fail(tape->status, "%s", tape->message) : AD_OK;
}

size_t ad_tape_peak_bytes(const ad_tape *tape) { return tape ? ad_memory_peak(&tape->own, tape->dry) : 0; }

size_t ad_tape_most_routed(const ad_tape *tape) { return tape->most_routed; }
ad_dtype ad_tape_dtype(const ad_tape *tape) { return tape->options.dtype; }

ad_dtype ad_tape_residual(const ad_tape *tape) {
  ad_dtype residual = tape->options.residual;
  ad_inject(AD_INJECT_RESIDUAL, &residual);
  return residual;
}

int ad_tape_has_dtype(const ad_tape *tape, ad_dtype dtype) {
  return dtype == tape->options.dtype || dtype == ad_dtype_wide(tape->options.dtype);
}

ad_comm *ad_tape_comm(const ad_tape *tape) { return tape ? tape->comm : NULL; }
const ad_mesh *ad_tape_mesh(const ad_tape *tape) { return tape ? tape->mesh : NULL; }
int ad_tape_failed(const ad_tape *tape) { return tape->status != AD_OK; }

void ad_tape_trace(ad_tape *tape, ad_pass pass, ad_edge edge) {
  if (tape->options.trace) tape->options.trace(tape->options.trace_context, pass, edge);
}

ad_tensor *ad_tape_fail(ad_tape *tape, ad_status status) {
  if (!tape) return NULL;
  if (!status)
    status = ad_fail(AD_INVALID, "ad_tape_fail: AD_OK is not an error; pass the status that the failed call returned");
  if (!tape->status) {
    tape->status = status;
    memcpy(tape->message, ad_last_error(), strlen(ad_last_error()) + 1);
  }
  return &tape->dead;
}

ad_tensor *ad_tape_missing(const char *site, const char *what) {
  if (!site) site = AD_NO_SITE;
  ad_fail(AD_INVALID, "%s: the tape that `%s` got is NULL; pass a tape that ad_tape_create made", site, what);
  return NULL;
}

void ad_tape_report_error(ad_tape *tape) {
  if (!tape->reported && ad_status_is_own(tape->status)) ad_comm_fail(tape->comm, tape->status, tape->message);
  tape->reported = 1;
}

/* ---- recording leaves ---- */

static int is_dead(const ad_tensor *tensor) { return !tensor || tensor == &tensor->tape->dead; }

int ad_tape_owns(const ad_tape *tape, const ad_tensor *tensor) {
  return tensor && tensor->tape == tape && !is_dead(tensor);
}

const char *ad_tape_foreigner(const ad_tensor *tensor) {
  if (!tensor) return "NULL";
  return is_dead(tensor) ? "the result of an operation that failed before ad_tape_reset" : "a tensor of another tape";
}

// Makes a tensor, followed in memory by its operands and the operation's own struct.
static ad_status new_tensor(ad_tape *tape, int operands, size_t own_size, const char *site, ad_tensor **out) {
  size_t behind = (size_t)operands * sizeof(ad_tensor *);
  ad_tensor *tensor = ad_arena_take_zeroed(tape->own.arena, sizeof *tensor + behind + own_size);
  if (!tensor) return AD_MEMORY;
  tensor->operand = (ad_tensor **)(tensor + 1);
  tensor->own = tensor->operand + operands;
  tensor->tape = tape;
  tensor->site = site;
  tensor->previous = tape->last;
  *out = tensor;
  return AD_OK;
}

static ad_status no_memory(const char *site) {
  return ad_fail(AD_INVALID, "%s: the array has no memory, since its `data` is NULL; set `data`", site);
}

/* Checks an array that is to become a leaf tensor (a parameter, an input or a constant); its mesh must have the ranks
 * of `mesh`. may_index 1: dtype i32 is allowed, too. comes_later 1: the array has memory only while it is acquired. */
static ad_status check_leaf(const ad_tape *tape, const ad_array *value, const ad_mesh *mesh, int may_index,
                            int comes_later, const char *site) {
  if (!value) return ad_fail(AD_INVALID, "%s: the array for the new tensor is NULL; give an array", site);
  if (!ad_tape_has_dtype(tape, value->dtype) && !(may_index && value->dtype == AD_I32))
    return ad_fail(AD_INVALID,
                   "%s: the dtype of the array is %s, but the tape computes in %s%s; convert the array first", site,
                   ad_dtype_name(value->dtype), ad_dtype_name(tape->options.dtype),
                   may_index ? " (and takes indices in i32)" : "");
  if (!value->layout.mesh || !ad_mesh_same_ranks(value->layout.mesh, mesh))
    return ad_fail(AD_TYPE,
                   "%s: the array is on a mesh of other ranks than the mesh of the tape, \"%s\"; give an array on the "
                   "ranks of the tape",
                   site, ad_mesh_text(mesh));
  if (value->scale)
    return ad_fail(AD_TYPE, "%s: the array is scaled by 2^-%d, but its scale must be 0; undo the scale first", site,
                   value->scale);
  if (!tape->dry && !comes_later && !value->data && ad_array_numel(value)) return no_memory(site);
  return AD_OK;
}

// For the tape of a leaf of the batch: finds the mesh of all ranks on which a parameter or a state is. NULL: the value
// is on no such mesh, or its positions have different parts of it.
static const ad_leaf_mesh *find_leaf_mesh(const ad_tape *tape, const ad_array *value) {
  ad_axes same = value ? ad_layout_same_axes(&value->layout) : 0;
  for (size_t i = 0; i < tape->leaf_mesh_count && !(AD_AXES_DP & ~same); i++)
    if (tape->leaf_meshes[i].full == value->layout.mesh) return &tape->leaf_meshes[i];
  return NULL;
}

// Records a leaf tensor with this value. `from` is NULL if it is not a parameter.
static ad_status record_leaf(ad_tape *tape, const ad_array *value, const ad_parameters *from, int carries,
                             const char *site, ad_tensor **out) {
  int may_index = !carries && !from, comes_later = from && from->acquire;
  const ad_leaf_mesh *meshes = find_leaf_mesh(tape, value);
  int is_full = meshes || (from && tape->leaf_meshes);
  AD_TRY(check_leaf(tape, value, is_full ? tape->leaf_meshes->full : tape->mesh, may_index, comes_later, site));
  ad_tensor *leaf;
  AD_TRY(new_tensor(tape, 0, 0, site, &leaf));
  leaf->array = *value;
  if (meshes) leaf->array.layout.mesh = meshes->own;
  leaf->from = from;
  leaf->carries = carries;
  leaf->is_frozen = from && !carries;
  leaf->reached = carries && !from;
  leaf->grad_dtype = from ? ad_dtype_wide(value->dtype) : value->dtype;
  tape->last = *out = leaf;
  return AD_OK;
}

static ad_tensor *record_value(ad_tape *tape, const ad_array *value, int carries, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, "leaf");
  if (tape->status) return &tape->dead;
  ad_tensor *leaf;
  ad_status status = record_leaf(tape, value, NULL, carries, site, &leaf);
  return status ? ad_tape_fail(tape, status) : leaf;
}

ad_tensor *ad_constant_at(ad_tape *tape, const ad_array *value, const char *site) {
  ad_tensor *constant = record_value(tape, value, 0, site);
  ad_constant_passing passing = {site, ad_tensor_array(constant)};
  if (passing.value) ad_inject(AD_INJECT_CONSTANT, &passing);
  return constant;
}

ad_tensor *ad_frozen_input(ad_tape *tape, const ad_array *value, const char *site) {
  ad_tensor *leaf = record_value(tape, value, 0, site);
  if (tape && !ad_tape_failed(tape)) leaf->is_frozen = 1;
  return leaf;
}

ad_tensor *ad_input_at(ad_tape *tape, const ad_array *value, const char *site) {
  return record_value(tape, value, 1, site);
}

ad_tensor *ad_input_with(ad_tape *tape, const ad_array *value, ad_dtype gradient, const char *site) {
  ad_tensor *leaf = record_value(tape, value, 1, site);
  if (tape && !ad_tape_failed(tape)) leaf->grad_dtype = gradient;
  return leaf;
}

static ad_status check_parameter(const ad_parameters *from, size_t param, const char *site) {
  if (!from || !from->values)
    return ad_fail(AD_INVALID,
                   "%s: `from` of the parameter is NULL or has no values; give an ad_parameters with values", site);
  if (from->size != sizeof *from)
    return ad_fail(AD_INVALID,
                   "%s: the field `size` of `from` is %zu; set `size` to sizeof(ad_parameters), which is %zu", site,
                   from->size, sizeof *from);
  if (param < from->count) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "%s: parameter %zu does not exist, since there are only %zu parameters, numbered from 0; pass a smaller number",
      site, param, from->count);
}

ad_tensor *ad_parameter_at(ad_tape *tape, const ad_parameters *from, size_t param, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, "leaf");
  if (tape->status) return &tape->dead;
  ad_tensor *leaf;
  ad_status status = check_parameter(from, param, site);
  if (!status) {
    int is_frozen = from->frozen && from->frozen[param];
    status = record_leaf(tape, from->values[param], from, !is_frozen, site, &leaf);
  }
  if (status) return ad_tape_fail(tape, status);
  leaf->param = param;
  return leaf;
}

/* ---- acquiring parameters for their uses ---- */

static int is_held(const ad_tensor *out, int i, uint64_t unread) {
  return ad_is_parameter(out->operand[i]) && !(unread >> i & 1);
}

// Releases a parameter: its memory may then be used for another parameter.
static void release_parameter(ad_tensor *parameter) {
  const ad_parameters *from = parameter->from;
  if (!from->release) return;
  from->release(from->context, parameter->param);
  parameter->array.data = NULL;
}

/* Releases the parameters among the first `count` operands, in reverse order; not those in the bit set `unread`, which
 * were not acquired. */
static void release_first(ad_tensor *out, int count, uint64_t unread) {
  for (int i = count; i-- > 0;) {
    if (is_held(out, i, unread)) release_parameter(out->operand[i]);
  }
}

/* Acquires a parameter's memory (with ZeRO 3 this gathers the parameter). */
static ad_status hold(const ad_tape *tape, ad_tensor *parameter) {
  const ad_parameters *from = parameter->from;
  if (from->acquire) AD_TRY(from->acquire(from->context, parameter->param));
  parameter->array.data = from->values[parameter->param]->data;
  if (parameter->array.data || tape->dry || !ad_numel(parameter)) return AD_OK;
  release_parameter(parameter);
  return no_memory(parameter->site);
}

ad_status ad_tape_acquire(ad_tape *tape, ad_tensor *out, uint64_t unread) {
  for (int i = 0; i < out->operand_count; i++) {
    ad_status status = is_held(out, i, unread) ? hold(tape, out->operand[i]) : AD_OK;
    if (!status) continue;
    release_first(out, i, unread);
    return status;
  }
  return AD_OK;
}

void ad_tape_release(ad_tensor *out, uint64_t unread) { release_first(out, out->operand_count, unread); }

/* ---- recording an operation ---- */

static ad_status set_operands(ad_tape *tape, ad_tensor *out, ad_tensor *const *operands, int count) {
  for (int i = 0; i < count; i++) {
    if (!ad_tape_owns(tape, operands[i]))
      return ad_fail(AD_INVALID, "%s: operand %d of `%s` is %s; give a tensor of this tape", out->site, i + 1,
                     out->op->name, ad_tape_foreigner(operands[i]));
    if (operands[i]->is_forgotten)
      return ad_fail(AD_INVALID,
                     "%s: operand %d of `%s` is a value whose memory ad_forget or ad_recompute gave back; call them "
                     "after the last "
                     "use of the value",
                     out->site, i + 1, out->op->name);
    out->operand[i] = operands[i];
    out->carries |= operands[i]->carries;
    out->is_frozen |= operands[i]->is_frozen;
    if (operands[i]->reached) out->reached = 1;
  }
  out->operand_count = count;
  return AD_OK;
}

static ad_status check_dtype(const ad_tensor *out) {
  ad_dtype dtype = out->operand[0]->array.dtype;
  unsigned dtypes = out->op->dtypes ? out->op->dtypes : AD_IN_F32_F64;
  if (dtypes >> dtype & 1) return AD_OK;
  return ad_fail(AD_INVALID, "%s: `%s` cannot compute in dtype %s; use a tape of another dtype", out->site,
                 out->op->name, ad_dtype_name(dtype));
}

// Refuses a result whose gradient backward cannot compute from addends. If the result is R, its gradient is P, an
// addend on each rank; backward may be called on addends only if it is linear in the gradient.
static ad_status check_linear(const ad_tensor *out) {
  if (!out->op->not_linear || !out->carries) return AD_OK;
  const ad_mesh *mesh = out->array.layout.mesh;
  ad_axes wrong = ad_layout_axes_of(&out->array.layout, AD_R) & (ad_mesh_named(mesh) | ad_mesh_large(mesh));
  if (!wrong) return AD_OK;
  return ad_fail(AD_TYPE,
                 "%s: the result of `%s` is R on `%s`, so each rank would get an addend of its gradient (P), but the "
                 "backward of `%s` is not linear in the gradient" AD_MAY_REPAIR
                 "all_reduce P->I or all_gather S->I, so that its operands are I there",
                 out->site, out->op->name, ad_axis_name((ad_axis)__builtin_ctz(wrong)), out->op->name);
}

/* Refuses an operand that is a parameter in bf16 if backward cannot write an f32 gradient, which such a parameter
 * has. */
static ad_status check_raw(const ad_tensor *out) {
  for (int i = 0; i < out->operand_count; i++) {
    const ad_tensor *operand = out->operand[i];
    if (!operand->carries || operand->grad_dtype == operand->array.dtype || out->op->raw >> i & 1) continue;
    return ad_fail(
        AD_INVALID,
        "%s: operand %d of `%s` is a parameter in %s, but its gradient must not be rounded to this dtype; convert "
        "the parameter to %s first (ad_to_dtype), or declare it `wide`",
        out->site, i + 1, out->op->name, ad_dtype_name(operand->array.dtype), ad_dtype_name(operand->grad_dtype));
  }
  return AD_OK;
}

/* Refuses an operand that carries a gradient which backward does not fill: its share would be missing from the sum. */
static ad_status check_fills(const ad_tensor *out) {
  uint64_t fills = ad_operation_fills(out->op);
  for (int i = 0; i < out->operand_count; i++) {
    if (!out->operand[i]->carries || fills >> i & 1) continue;
    return ad_fail(AD_INVALID,
                   "%s: operand %d of `%s` needs a gradient, but the operation computes no gradient for this operand; "
                   "give a constant there",
                   out->site, i + 1, out->op->name);
  }
  return AD_OK;
}

/* Computes the result's shape, dtype and layout, and makes all checks. */
static ad_status describe_output(ad_tape *tape, ad_tensor *out) {
  const ad_operation *op = out->op;
  AD_TRY(check_dtype(out));
  AD_TRY(op->describe ? op->describe(tape, out) : ad_operation_describe(tape, out));
  out->grad_dtype = op->passes_on ? out->operand[0]->grad_dtype : out->array.dtype;
  AD_TRY(check_fills(out));
  if (!op->passes_on) AD_TRY(check_raw(out));
  AD_TRY(check_linear(out));
  return op->check ? op->check(tape, out) : AD_OK;
}

/* Returns 1 if what forward saves has to stay after forward: for a backward, or because the memory that forward itself
 * allocates lies behind it. */
static int keeps_saved(const ad_tensor *out) { return out->carries || out->op->makes_memory; }

/* Gives the result its memory, operand 0's or new memory, and memory for what a backward will read. */
static ad_status take_memory(ad_tape *tape, ad_tensor *out) {
  const ad_operation *op = out->op;
  const ad_tensor *first = out->operand[0];
  int stays = !ad_is_parameter(first) || !first->from->acquire;  // 0: the operand's memory is released after this use
  int made_by_forward = op->makes_memory && !tape->dry;
  if (out->has_value) {
    // it was kept
  } else if (stays && op->shares && op->shares(out)) {
    out->array.data = first->array.data;
    out->shares_value = 1;
  } else if (!made_by_forward) {
    AD_TRY(ad_value_take(tape, ad_array_bytes(&out->array), &out->array.data));
    out->has_value = 1;
  }
  if (!op->saved || !keeps_saved(out) || out->has_saved) return AD_OK;
  AD_TRY(ad_value_take(tape, op->saved(out), &out->saved));
  out->has_saved = 1;
  return AD_OK;
}

/* Takes the memory that forward needs for itself: scratch and, if no backward will read it, what forward saves. */
static ad_status take_working_memory(ad_tape *tape, ad_tensor *out) {
  AD_TRY(ad_tape_take_scratch(tape, out));
  if (!out->op->saved || keeps_saved(out)) return AD_OK;
  return ad_memory_take(tape->values, tape->dry, out->op->saved(out), &out->saved);
}

/* Runs forward with scratch memory, unless the backend is dry. */
static ad_status run_forward(ad_tape *tape, ad_tensor *out) {
  tape_mark mark = ad_tape_mark(tape);
  AD_TRY(take_working_memory(tape, out));
  ad_status status = tape->dry && !out->op->runs_dry ? AD_OK : out->op->forward(tape, out);
  ad_status products = ad_gemm_status();
  if (!status) status = products;
  if (!out->op->makes_memory) {
    ad_tape_rewind(tape, mark);
    if (!out->has_saved) out->saved = NULL;
    return status;
  }
  return status ? status : ad_array_check(tape->comm, &out->array, out->op->name, out->site);
}

ad_status ad_tape_run(ad_tape *tape, ad_tensor *out) {
  AD_TRY(ad_tape_acquire(tape, out, 0));
  ad_status status = take_memory(tape, out);
  if (!status) status = run_forward(tape, out);
  ad_tape_release(out, 0);
  return status;
}

static ad_status apply(ad_tape *tape, ad_tensor *out, ad_tensor *const *operands, int count) {
  AD_TRY(set_operands(tape, out, operands, count));
  AD_TRY(describe_output(tape, out));
  return ad_tape_run(tape, out);
}

static ad_status record_tensor(const ad_operation_passing *call, ad_tensor **out) {
  ad_tensor *made;
  AD_TRY(new_tensor(call->tape, call->count, call->op->own_size, call->site, &made));
  made->op = call->op;
  if (call->op->own_size) memcpy(made->operand + call->count, call->own, call->op->own_size);
  AD_TRY(apply(call->tape, made, call->operands, call->count));
  call->tape->last = *out = made;
  return AD_OK;
}

ad_tensor *ad_tape_apply(ad_tape *tape, const ad_operation *op, ad_tensor *const *operands, int count, const void *own,
                         const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, op->name);
  if (tape->status) return &tape->dead;
  if (!tape->runs_forward) ad_tape_trace(tape, AD_FORWARD, AD_BEGINS);
  tape->runs_forward = 1;
  ad_operation_passing call = {tape, op, operands, count, own, site};
  ad_inject(AD_INJECT_OPERANDS, &call);
  if (tape->status) return &tape->dead;
  ad_tensor *out;
  ad_status status = record_tensor(&call, &out);
  if (!status) return out;
  ad_tape_fail(tape, status);
  ad_inject(AD_INJECT_REFUSED, &call);
  return &tape->dead;
}

/* ---- reading results ---- */

const ad_array *ad_tensor_array(const ad_tensor *tensor) { return is_dead(tensor) ? NULL : &tensor->array; }
const ad_array *ad_grad(const ad_tensor *tensor) { return tensor && tensor->has_grad ? &tensor->grad : NULL; }

void ad_keep(ad_tensor *tensor) {
  if (!is_dead(tensor)) tensor->is_kept = 1;
}

double ad_tensor_scalar(const ad_tensor *tensor) {
  if (is_dead(tensor)) return NAN;
  const ad_array *array = &tensor->array;
  if (array->shape.ndim || !array->data || !ad_dtype_is_float(array->dtype)) return NAN;
  return ad_element(array->dtype, array->data, 0);
}
