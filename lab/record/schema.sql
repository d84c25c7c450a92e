-- The record of what was run, on what, and how it came out. Version 1.
--
-- One `run` is one invocation; one `result` is one case of one kernel in it. `result.json` keeps
-- the element of kernel-diff's `results` list unchanged; the columns beside it repeat what queries
-- ask for, taken over all outputs of the case (sums for counts, the worst for the rest).
-- A row goes when its run goes.

CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version VALUES (1);

-- Machine and software, once per distinct content.
CREATE TABLE env (
    id     INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    json   TEXT NOT NULL
);

-- uid names the run across stores; state holds clocks, temperature and the like at its start.
CREATE TABLE run (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    uid         TEXT NOT NULL UNIQUE,
    started     TEXT NOT NULL,
    finished    TEXT,
    exit_code   INTEGER,
    argv        TEXT NOT NULL,
    "commit"    TEXT,
    dirty       INTEGER,
    diff_digest TEXT,
    state       TEXT,
    env_id      INTEGER NOT NULL REFERENCES env (id)
);

CREATE TABLE build (
    id            INTEGER PRIMARY KEY,
    kernel        TEXT NOT NULL,
    source_digest TEXT NOT NULL,
    options       TEXT NOT NULL,
    arch          TEXT NOT NULL,
    nvrtc         TEXT,
    regs          INTEGER,
    smem          INTEGER,
    local_bytes   INTEGER,
    cubin_digest  TEXT,
    UNIQUE (kernel, source_digest, options, arch, nvrtc, cubin_digest)
);

CREATE TABLE result (
    id                 INTEGER PRIMARY KEY,
    run                INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    kernel             TEXT NOT NULL,
    family             TEXT,
    "case"             TEXT NOT NULL,
    axes               TEXT NOT NULL,
    backend            TEXT,
    mode               TEXT,
    arch               TEXT,
    seed               INTEGER,
    spec_digest        TEXT,
    source_digest      TEXT,
    input_digest       TEXT,
    output_digest      TEXT,
    build              INTEGER REFERENCES build (id),
    contract           TEXT,
    verdict            TEXT NOT NULL,
    identical          INTEGER,
    n                  INTEGER,
    ulp_max            REAL,
    ulp_real_max       REAL,
    bias               REAL,
    rel_l2             REAL,
    cos                REAL,
    bound_use          REAL,
    first_index        INTEGER,
    census             TEXT,
    time_s             REAL,
    bytes              INTEGER,
    bandwidth_fraction REAL,
    json               TEXT NOT NULL
);
CREATE INDEX result_history ON result (kernel, "case", arch, run);
CREATE INDEX result_run ON result (run);

CREATE TABLE histogram (
    result INTEGER NOT NULL REFERENCES result (id) ON DELETE CASCADE,
    output TEXT NOT NULL,
    bucket TEXT NOT NULL,
    n      INTEGER NOT NULL,
    PRIMARY KEY (result, output, bucket)
) WITHOUT ROWID;

-- samples: little-endian float32 seconds.
CREATE TABLE timing (
    result    INTEGER NOT NULL REFERENCES result (id) ON DELETE CASCADE,
    mode      TEXT,
    n         INTEGER,
    min       REAL,
    q1        REAL,
    median    REAL,
    q3        REAL,
    mean      REAL,
    noise     REAL,
    sm_mhz    REAL,
    throttled INTEGER,
    bytes     INTEGER,
    flops     INTEGER,
    samples   BLOB
);
CREATE INDEX timing_result ON timing (result);

CREATE TABLE artifact (
    result INTEGER NOT NULL REFERENCES result (id) ON DELETE CASCADE,
    kind   TEXT NOT NULL,
    path   TEXT NOT NULL
);
CREATE INDEX artifact_result ON artifact (result);
