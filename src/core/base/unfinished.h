/* Files and folders that are written under another name first: names that nobody can guess, so that no link and no file
 * can lie in wait there, and removing those that a kill left behind. */
#ifndef BASE_UNFINISHED_H
#define BASE_UNFINISHED_H
#include <stddef.h>
#include <stdio.h>
#include "addend/status.h"
#include "base/internal.h"

enum { AD_TOKEN_SIZE = 17 }; /* sixteen hexadecimal digits and the 0 */

/* Sixty-four random bits, never 0. */
AD_INTERNAL long long ad_token_bits(void);
AD_INTERNAL void ad_token_print(long long bits, char token[AD_TOKEN_SIZE]);
/* Writes a whole file: `write` fills one that is called otherwise, which then gets the name `path` as ad_unfinished_end
 * does. AD_IO names the path. keep: not NULL: *keep stays open for more, on success. */
AD_INTERNAL AD_CHECKED ad_status ad_unfinished_write(const char *path, ad_status (*write)(FILE *file, void *context),
                                                     void *context, FILE **keep);
/* AD_IO for a name whose file cannot be replaced by another: of a folder, a pipe or a device, or of a link to such or
 * into /proc, as /dev/stdout is. A link to a file can: it makes way itself. */
AD_INTERNAL AD_CHECKED ad_status ad_unfinished_check(const char *path);
/* "PATH.TOKEN.tmp", where ad_unfinished_check(path); release with ad_release. */
AD_INTERNAL AD_CHECKED ad_status ad_unfinished_path(const char *path, char **out);
/* `written`: what became of writing it. Gives the file the name `path`; what has that name goes, a link itself and not
 * what it leads to. A file that was not written whole, or cannot have the name, is removed. */
AD_CHECKED ad_status ad_unfinished_end(const char *unfinished, const char *path, ad_status written);
AD_INTERNAL int ad_is_unfinished(const char *entry, const char *name); /* NAME.TOKEN.tmp */
/* Removes every NAME.TOKEN.tmp of these names in the folder; where that is a link, nothing. */
AD_INTERNAL AD_CHECKED ad_status ad_unfinished_remove(const char *folder, const char *const *names, size_t count);

#endif
