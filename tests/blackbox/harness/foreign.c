/* Another module, as a neighbour of the one under test. It declares the few functions of the module API that it needs.
 * FOREIGN.SET key value: a command on a key. FOREIGN.CALL command ...: runs a command without any user, as modules do.
 * FOREIGN.WRAP command ...: has the keys of the command in it and runs that as its caller. */
#include <stddef.h>

typedef struct Ctx Ctx;
typedef struct String String;
typedef struct Reply Reply;
typedef int (*Command)(Ctx *, String **, int);

static void (*set_attributes)(Ctx *, const char *, int, int);
static int (*create_command)(Ctx *, const char *, Command, const char *, int, int, int);
static Reply *(*call)(Ctx *, const char *, const char *, ...);
static void (*free_reply)(Reply *);
static int (*reply_with)(Ctx *, Reply *);
static int (*reply_error)(Ctx *, const char *);
static int (*is_key_request)(Ctx *);
static void (*key_at)(Ctx *, int);
static int *(*keys_of)(Ctx *, String **, int, int *);
static const char *(*text_of)(const String *, size_t *);
static void (*free_block)(void *);

static int run(Ctx *ctx, const char *format, String **argv, int argc) {
    Reply *reply = call(ctx, text_of(argv[0], NULL), format, argv + 1, (size_t)argc - 1);
    if (!reply) return reply_error(ctx, "ERR no reply");
    reply_with(ctx, reply);
    free_reply(reply);
    return 0;
}

static int foreign_set(Ctx *ctx, String **argv, int argc) {
    if (argc != 3) return reply_error(ctx, "ERR arity");
    Reply *reply = call(ctx, "SET", "!ss", argv[1], argv[2]);
    if (!reply) return reply_error(ctx, "ERR no reply");
    reply_with(ctx, reply);
    free_reply(reply);
    return 0;
}

static int foreign_call(Ctx *ctx, String **argv, int argc) {
    if (argc < 2) return reply_error(ctx, "ERR arity");
    return run(ctx, "!E0v", argv + 1, argc - 1);
}

static int foreign_wrap(Ctx *ctx, String **argv, int argc) {
    if (argc < 2) return is_key_request(ctx) ? 0 : reply_error(ctx, "ERR arity");
    if (!is_key_request(ctx)) return run(ctx, "!CE0v", argv + 1, argc - 1);
    int count = 0;
    int *keys = keys_of(ctx, argv + 1, argc - 1, &count);
    for (int i = 0; keys && i < count; i++) key_at(ctx, keys[i] + 1);
    if (keys) free_block(keys);
    return 0;
}

int RedisModule_OnLoad(Ctx *ctx, String **argv, int argc) {
    (void)argv;
    (void)argc;
    int (*get)(const char *, void *) = *(int (**)(const char *, void *))ctx;
    int missing = get("RedisModule_SetModuleAttribs", &set_attributes) | get("RedisModule_CreateCommand", &create_command) |
                  get("RedisModule_Call", &call) | get("RedisModule_FreeCallReply", &free_reply) |
                  get("RedisModule_ReplyWithCallReply", &reply_with) | get("RedisModule_ReplyWithError", &reply_error) |
                  get("RedisModule_IsKeysPositionRequest", &is_key_request) | get("RedisModule_KeyAtPos", &key_at) |
                  get("RedisModule_GetCommandKeys", &keys_of) | get("RedisModule_StringPtrLen", &text_of) |
                  get("RedisModule_Free", &free_block);
    if (missing) return 1;
    set_attributes(ctx, "foreign", 1, 1);
    return create_command(ctx, "FOREIGN.SET", foreign_set, "write", 1, 1, 1) |
           create_command(ctx, "FOREIGN.CALL", foreign_call, "write", 0, 0, 0) |
           create_command(ctx, "FOREIGN.WRAP", foreign_wrap, "write getkeys-api", 0, 0, 0);
}
