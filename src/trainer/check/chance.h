/* Chances: how often one sum of squares exceeds another by so much. */
#ifndef CHECK_CHANCE_H
#define CHECK_CHANCE_H

/* The chance that the mean of `above` squares of normal numbers is more than `ratio` times that of `below` others: the
 * upper tail of the F distribution. Numbers of squares need not be whole. */
double ad_chance_of_ratio(double ratio, double above, double below);
/* The ratio that is exceeded with that chance, from 1e-300 to 0.5. */
double ad_ratio_of_chance(double chance, double above, double below);

#endif
