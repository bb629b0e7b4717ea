/* Computes how likely it is that one sum of squares exceeds another by a given factor. */
#ifndef CHECK_CHANCE_H
#define CHECK_CHANCE_H

/* Returns the probability that the mean of `above` squares of standard normal numbers is more than `ratio` times the
 * mean of `below` others: the upper tail of the F distribution. `above` and `below` (degrees of freedom) need not be
 * integers. */
double ad_chance_of_ratio(double ratio, double above, double below);
/* Returns the ratio that is exceeded with this probability, from 1e-300 to 0.5: the inverse of ad_chance_of_ratio. */
double ad_ratio_of_chance(double chance, double above, double below);

#endif
