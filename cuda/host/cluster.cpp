// Runs the blocks of a cluster in turns.
//
// Shared variables have one address in the library, so a block's are copied there for its turn and
// back behind it: each block runs until all its threads wait at a cluster barrier, then the next one
// does. What other blocks put into its shared memory meanwhile goes to the copy.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"

namespace host {

Cluster cluster{1};

namespace {

struct Parked {
    Block block;
    char* shared;  // static, then dynamic
    size_t capacity;
};

Parked* parked;  // one for each rank

size_t static_bytes() {
    const StaticShared statics = static_shared();
    // The dynamic part starts on a boundary of its own.
    return (statics.end - statics.first + 1023) / 1024 * 1024;
}

void copy_in(const Parked& from) {
    const StaticShared statics = static_shared();
    if (statics.first != nullptr) memcpy(statics.first, from.shared, statics.end - statics.first);
    memcpy(dsv4_dynamic_shared, from.shared + static_bytes(), launch->shared_bytes);
    block = from.block;
}

void copy_out(Parked& to) {
    const StaticShared statics = static_shared();
    if (statics.first != nullptr) memcpy(to.shared, statics.first, statics.end - statics.first);
    memcpy(to.shared + static_bytes(), dsv4_dynamic_shared, launch->shared_bytes);
    to.block = block;
}

}  // namespace

void begin_clusters() {
    if (cluster.size == 1) return;
    if (parked == nullptr) parked = static_cast<Parked*>(calloc(max_cluster, sizeof *parked));
    const size_t size = static_bytes() + launch->shared_bytes;
    for (int rank = 0; rank < cluster.size; ++rank) {
        if (parked[rank].capacity >= size) continue;
        free(parked[rank].shared);
        parked[rank].shared = static_cast<char*>(aligned_alloc(1024, (size + 1023) / 1024 * 1024));
        parked[rank].capacity = size;
    }
}

namespace {

bool has_returned(int rank) {
    const Block& other = parked[rank].block;
    return other.exited_count == other.thread_count;
}

bool has_failed() { return fault->kind[0] != 0; }

// One turn of each block that has not returned, in a random order where that is asked for. Returns
// whether any is left. first: the number of the first one.
bool run_round(unsigned first) {
    int order[max_cluster];
    for (int i = 0; i < cluster.size; ++i) {
        const int other = launch->shuffle ? random_number() % (i + 1) : i;
        order[i] = order[other];
        order[other] = i;
    }
    bool any = false;
    for (int i = 0; i < cluster.size; ++i) {
        const int rank = order[i];
        if (has_returned(rank)) continue;
        copy_in(parked[rank]);
        cluster.rank = rank;
        run_block(first + rank);
        if (has_failed()) return false;
        copy_out(parked[rank]);
        any |= !has_returned(rank);
    }
    ++cluster.round;
    return any;
}

}  // namespace

bool others_have_returned() {
    for (int rank = 0; rank < cluster.size; ++rank)
        if (rank != cluster.rank && !has_returned(rank)) return false;
    return true;
}

int cluster_rank() { return cluster.rank; }

Image image_of(int rank) {
    char* const shared = parked[rank].shared;
    return {shared, shared + static_bytes()};
}

void run_cluster(unsigned number) {
    take_back_fibers();
    cluster.rank = cluster.round = 0;
#ifdef DSV4_CHECK
    check_cluster_begins();
#endif
    if (cluster.size == 1) {
        begin_block();
        return run_block(number);
    }
    for (int rank = 0; rank < cluster.size; ++rank) {
        cluster.rank = rank;
        begin_block();
        copy_out(parked[rank]);
    }
    while (run_round(number * cluster.size)) {
    }
}

void* shared_of(void* own, int rank, const char* file, int line) {
    char* const address = static_cast<char*>(own);
    const StaticShared statics = static_shared();
    const bool is_static = address >= statics.first && address < statics.end;
    const bool is_dynamic = address >= dsv4_dynamic_shared &&
                            address < dsv4_dynamic_shared + launch->shared_bytes;
    char text[160];
    if (!is_static && !is_dynamic)
        fail("out-of-bounds", "the place in another block's shared memory is none in this block's",
             file, line);
    if (rank < 0 || rank >= cluster.size) {
        snprintf(text, sizeof text, "block %d of a cluster of %d was to be reached", rank,
                 cluster.size);
        fail("out-of-bounds", text, file, line);
    }
    if (rank == cluster.rank) return own;
    if (checking && cluster.round == 0) {
        snprintf(text, sizeof text,
                 "block %d of the cluster was reached before await_cluster: it may not have "
                 "begun",
                 rank);
        fail("early-access", text, file, line);
    }
    if (checking && has_returned(rank)) {
        snprintf(text, sizeof text, "block %d of the cluster was reached after it had returned",
                 rank);
        fail("early-end", text, file, line);
    }
    const Image image = image_of(rank);
    return is_static ? image.statics + (address - statics.first)
                     : image.dynamic + (address - dsv4_dynamic_shared);
}

void open_inbox(Inbox* own, uint32_t bytes) { *own = {bytes, 0}; }

void enter_cluster() {
#ifdef DSV4_CHECK
    note_entered();
#endif
}

void* letter_to(Inbox* box, void* own, int rank, size_t size, const char* file, int line) {
    void* const there = shared_of(own, rank, file, line);
    if (reinterpret_cast<uintptr_t>(there) % size != 0)
        fail("misaligned", "a letter's place is not a multiple of its size", file, line);
#ifdef DSV4_CHECK
    check_letter(static_cast<char*>(there), size, rank, file, line);
#endif
    static_cast<Inbox*>(shared_of(box, rank, file, line))->received += size;
    return there;
}

void await_mail(const Inbox* own, const char* file, int line) {
    cluster_barrier(file, line);
    if (own->received == own->expected) return;
    char text[160];
    snprintf(
        text, sizeof text,
        "block %d of the cluster waits for %u bytes of mail; %u were sent, and all blocks wait",
        cluster.rank, own->expected, own->received);
    fail("deadlock", text, file, line);
}

}  // namespace host
