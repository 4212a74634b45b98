/* A module with one command, CALLER.CALL command [arg ...], which does what any module can do: it calls a command in
 * its own name. What stands in a server's module header is declared here, as far as it is used. */

#include <stddef.h>

typedef struct Ctx Ctx;
typedef struct String String;
typedef struct CallReply CallReply;
typedef int (*GetApi)(const char *name, void *function);
typedef int (*Command)(Ctx *ctx, String **argv, int argc);

static void (*set_module_attribs)(Ctx *ctx, const char *name, int version, int api);
static int (*create_command)(Ctx *ctx, const char *name, Command run, const char *flags, int first, int last, int step);
static const char *(*string_ptr_len)(const String *string, size_t *len);
static CallReply *(*call)(Ctx *ctx, const char *command, const char *format, ...);
static int (*reply_with_call_reply)(Ctx *ctx, CallReply *reply);
static int (*reply_with_error)(Ctx *ctx, const char *text);

static int run(Ctx *ctx, String **argv, int argc) {
    CallReply *reply = call(ctx, string_ptr_len(argv[1], NULL), "!Ev", argv + 2, (size_t)(argc - 2));
    if (reply == NULL) return reply_with_error(ctx, "ERR no reply");
    return reply_with_call_reply(ctx, reply);
}

int RedisModule_OnLoad(Ctx *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    GetApi get_api = *(GetApi *)ctx;
    get_api("RedisModule_SetModuleAttribs", &set_module_attribs);
    get_api("RedisModule_CreateCommand", &create_command);
    get_api("RedisModule_StringPtrLen", &string_ptr_len);
    get_api("RedisModule_Call", &call);
    get_api("RedisModule_ReplyWithCallReply", &reply_with_call_reply);
    get_api("RedisModule_ReplyWithError", &reply_with_error);
    set_module_attribs(ctx, "caller", 1, 1);
    return create_command(ctx, "caller.call", run, "write", 0, 0, 0);
}
