/* The interface inside: what libaddend exports beside its public API, for libaddend_train of the same version alone.
 * src/core/exports.map lists it, header by header; script/check-layers holds both libraries to the list. */
#ifndef BASE_INTERNAL_H
#define BASE_INTERNAL_H

#define AD_INTERNAL __attribute__((visibility("default")))

#endif
