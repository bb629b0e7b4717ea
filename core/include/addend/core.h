/* The public API of libaddend, the core library, in the order in which its headers build on each other. */
#ifndef ADDEND_CORE_H
#define ADDEND_CORE_H
#include "addend/status.h"
#include "addend/verdict.h"
#include "addend/memory.h"
#include "addend/random.h"
#include "addend/dtype.h"
#include "addend/mesh.h"
#include "addend/layout.h"
#include "addend/comm.h"
#include "addend/array.h"
#include "addend/safetensors.h"
#include "addend/schedule.h"
#include "addend/parameter.h"
#include "addend/reduce.h"
#include "addend/store.h"
#include "addend/bridge.h"
#include "addend/optim.h"
#include "addend/binding.h"
#endif
