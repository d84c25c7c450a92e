// What the checker's parts share: call sites, and the scheduler's news.
#pragma once
#include "block.h"

namespace host {

// Says which addresses are code of this library.
void read_sites(char* image_first, char* image_end);

// A number for the chain of calls that ends at pc; the same chain gets the same number.
uint32_t intern_site(void* pc, void* frame);
Chain chain_of(uint32_t site);
bool same_lines(uint32_t site, uint32_t other);
void forget_sites();

}  // namespace host
