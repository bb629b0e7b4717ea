/* For authors of frameworks: the public API of libaddend, the core library, in the order in which its headers build on
 * each other. This header does not include schedule.h (tables of pipelines), diff.h (dumps) and helpers.h; include them
 * by themselves. */
#ifndef ADDEND_CORE_H
#define ADDEND_CORE_H
#include "addend/status.h"
#include "addend/verdict.h"
#include "addend/dtype.h"
#include "addend/mesh.h"
#include "addend/layout.h"
#include "addend/comm.h"
#include "addend/array.h"
#include "addend/safetensors.h"
#include "addend/checkpoint.h"
#include "addend/parameter.h"
#include "addend/reduce.h"
#include "addend/store.h"
#include "addend/bridge.h"
#include "addend/optim.h"
#include "addend/binding.h"
#endif
