#include "agent/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <sstream>

namespace closeranks::agent {
namespace {

Status wrong(const std::string& sentence) { return {Fault::invalid_argument, Move::fix_call, sentence}; }

// Flags of torchrun that have no meaning here; better said than ignored.
constexpr std::string_view refused_flags[] = {
    "--event-log-handler", "--run-path",          "--log-line-prefix-template", "--duplicate-stdout-filters",
    "--logs-specs",        "--numa-binding",      "--duplicate-stderr-filters", "--print-completion",
    "--shutdown-timeout",  "--signals-to-handle", "--virtual-local-rank",
};

constexpr std::uint32_t max_spares = 16;

// Values as the command line has them, before they are checked.
struct Raw {
  std::string nproc = "1";
  std::string nnodes = "1";
  std::string node_rank = "0";
  std::string rdzv_backend, rdzv_endpoint, rdzv_conf, rdzv_id;
  std::string master_addr = "127.0.0.1", master_port, local_addr;
  std::string monitor_interval, start_method, local_ranks;
  std::string redirects = "0", tee = "0";
  double stop_seconds = std::chrono::duration<double>(deadlines::stop).count();
  double orphan_seconds = std::chrono::duration<double>(deadlines::orphan).count();
  std::optional<double> hang_seconds;
  double grace_seconds = std::chrono::duration<double>(deadlines::drain_grace).count();
  bool standalone = false;
};

void declare(CLI::App& app, LaunchOptions& options, Raw& raw) {
  const std::string torchrun = "torchrun's flags (with - or _)";
  const auto text = [&](const std::string& name, std::string& value, const std::string& help) {
    std::string variable = "PET_" + name.substr(name.rfind("--") + 2);
    std::transform(variable.begin(), variable.end(), variable.begin(),
                   [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::toupper(c)); });
    return app.add_option(name, value, help)->group(torchrun)->envname(variable);
  };
  text("--nproc-per-node", raw.nproc, "workers: a number, auto, cpu or gpu (default 1)");
  text("--nnodes", raw.nnodes, "hosts; 1 for now");
  app.add_flag("--standalone", raw.standalone, "one host, free ports; always so here")->group(torchrun);
  text("--rdzv-id", options.run_id, "name of the run (TORCHELASTIC_RUN_ID); default: drawn");
  text("--rdzv-backend", raw.rdzv_backend, "accepted; the agent is its own rendezvous");
  text("--rdzv-endpoint", raw.rdzv_endpoint, "accepted; a port in it is used like --master-port");
  text("--rdzv-conf", raw.rdzv_conf, "accepted; there is nothing to configure");
  app.add_option("--master-addr", raw.master_addr, "this host's loopback; the store listens nowhere else")
      ->group(torchrun);
  app.add_option("--master-port", raw.master_port, "port of the store (default: a free one)")->group(torchrun);
  app.add_option("--local-addr", raw.local_addr, "accepted; one host needs no address")->group(torchrun);
  text("--node-rank", raw.node_rank, "0: this is the only host");
  text("--role", options.role, "ROLE_NAME of the workers (default 'default')");
  app.add_option("--max-restarts", options.max_restarts,
                 "told to the workers; nobody is restarted: survivors go on (--shrink) or the job ends")
      ->group(torchrun)
      ->envname("PET_MAX_RESTARTS");
  text("--monitor-interval", raw.monitor_interval, "accepted; deaths are noticed in milliseconds");
  text("--start-method", raw.start_method, "accepted; workers are programs of their own");
  app.add_flag("-m,--module", options.module, "the script is a module, as with python -m")->group(torchrun);
  app.add_flag("--no-python", options.no_python, "run the script as a program, without python")->group(torchrun);
  text("--log-dir", options.log_dir,
       "a folder per job is made in it (default ~/.local/state/closeranks, the last 10 kept)");
  text("-r,--redirects", raw.redirects, "streams for the log files only: 1 stdout, 2 stderr, 3 both, or 0:3,1:2");
  text("-t,--tee", raw.tee, "streams shown and logged; the default here, undoes -r");
  text("--local-ranks-filter", raw.local_ranks, "show the output of these slots only: 0,2");

  const std::string ours = "closeranks' own flags";
  app.add_flag("--shrink", options.shrink, "lost workers do not end the job: the others go on without them")
      ->group(ours);
  app.add_option("--min-present", options.min_present, "with --shrink: end the job below this many workers (default 1)")
      ->group(ours);
  app.add_option("--events", options.events_file, "append the job's events to this file, one JSON object per line")
      ->group(ours);
  app.add_option(
         "--max-replacements", options.max_replacements,
         "workers of one slot that may end before their first step within 10 minutes before the slot is given up "
         "(default 3); 0: lost workers are not replaced")
      ->group(ours);
  app.add_option("--spares", options.spares,
                 "processes that have imported torch and wait to replace a lost worker, once the script is in a "
                 "closeranks.Session (default 1; 0: none)")
      ->group(ours);
  app.add_option("--hang-timeout", raw.hang_seconds,
                 "seconds all others may wait for a worker that makes no progress, in a closeranks.Session (default: "
                 "from the job's own history, 5 to 60)")
      ->group(ours);
  app.add_option("--grace", raw.grace_seconds,
                 "seconds that a closeranks.Session has to leave at a boundary after SIGTERM (default 30)")
      ->group(ours);
  app.add_option("--trace-dir", options.trace_dir,
                 "folder of the flight recorder's files; put it on a volume that outlives the machine (default: trace/ "
                 "in the job's log folder)")
      ->group(ours)
      ->envname("CLOSERANKS_TRACE_DIR");
  app.add_option("--trace-bytes", options.trace_bytes, "size of each worker's file there, at most (default 4194304)")
      ->group(ours)
      ->check(CLI::Range(recorder::least_ring_bytes, recorder::most_ring_bytes));
  app.add_flag("--check-nan", options.check_nan,
               "look for the first NaN or infinity in what goes into a reduction; reads each such tensor once more")
      ->group(ours);
  app.add_flag("--record-stacks", options.record_stacks,
               "record from which line each op is called; some microseconds an op")
      ->group(ours);
  app.add_flag("--dry-run", options.dry_run, "print command, environment, ports and deadlines; start nothing")
      ->group(ours);
  app.add_option("--stop-timeout", raw.stop_seconds,
                 "seconds a worker may be stopped (SIGSTOP) before it counts as lost")
      ->group(ours);
  app.add_option("--orphan-timeout", raw.orphan_seconds,
                 "seconds after which a worker that reaches nobody any more ends by itself")
      ->group(ours);
}

// "--nproc_per_node=4" -> "--nproc-per-node=4": only the name, only of long flags.
std::string with_dashes(std::string token) {
  if (token.starts_with("--")) {
    const auto end = std::find(token.begin(), token.end(), '=');
    std::replace(token.begin(), end, '_', '-');
  }
  return token;
}

std::string name_of_flag(const std::string& token) { return token.substr(0, token.find('=')); }

std::vector<std::string> all_flags(const CLI::App& app) {
  std::vector<std::string> names{"--help"};
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// The sentence for a flag that `closeranks run` does not have.
Status unknown_flag(const CLI::App& app, const std::string& flag) {
  if (std::find(std::begin(refused_flags), std::end(refused_flags), flag) != std::end(refused_flags)) {
    return wrong(flag + " is a flag of torchrun that closeranks run does not have; leave it out");
  }
  const std::vector<std::string> flags = all_flags(app);
  const std::string meant = nearest(flag, flags);
  return wrong(flag + " is not a flag of closeranks run" +
               (meant.empty() ? "; closeranks run --help lists them" : "; did you mean " + meant + "?"));
}

// How many of `arguments` belong to us: up to the first positional, or `--`.
struct Cut {
  std::vector<std::string> flags;
  std::vector<std::string> script;
};

Result<Cut> cut(const CLI::App& app, std::span<const std::string> arguments) {
  Cut result;
  std::size_t at = 0;
  while (at < arguments.size()) {
    const std::string token = with_dashes(arguments[at]);
    if (token == "--") {
      ++at;
      break;
    }
    if (token.size() < 2 || token[0] != '-') break;
    std::string name = name_of_flag(token);
    // -r3 and -t3: a short flag with its value attached.
    if (!token.starts_with("--") && token.size() > 2) name = token.substr(0, 2);
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr) return unknown_flag(app, name);
    result.flags.push_back(token);
    ++at;
    const bool takes_value = option->get_items_expected_max() > 0;
    const bool has_value = token.find('=') != std::string::npos || (!token.starts_with("--") && token.size() > 2);
    if (takes_value && !has_value) {
      if (at == arguments.size()) return wrong(name + " needs a value");
      result.flags.push_back(arguments[at++]);
    }
  }
  result.script.assign(arguments.begin() + static_cast<std::ptrdiff_t>(at), arguments.end());
  return result;
}

Result<std::uint16_t> port(const std::string& flag, const std::string& text) {
  const auto value = whole_number(text);
  if (!value.has_value() || *value > 65535)
    return wrong(flag + " takes a port from 0 to 65535 (0: a free one), not '" + text + "'");
  return static_cast<std::uint16_t>(*value);
}

bool is_loopback(const std::string& address) {
  return address.empty() || address == "localhost" || address == "::1" || address == "[::1]" ||
         address.starts_with("127.");
}

Status check_hosts(const Raw& raw) {
  if (raw.nnodes != "1" && raw.nnodes != "1:1") {
    return wrong("--nnodes is " + raw.nnodes + "; one host for now: leave it out or say --nnodes 1");
  }
  if (raw.node_rank != "0") return wrong("--node-rank is " + raw.node_rank + "; one host for now, so it can only be 0");
  if (!is_loopback(raw.master_addr)) {
    return wrong("--master-addr is " + raw.master_addr +
                 "; one host for now, and the store listens on loopback only: leave it out or say 127.0.0.1");
  }
  return {};
}

Status check_ports(const Raw& raw, LaunchOptions& options) {
  if (!raw.master_port.empty()) {
    const auto value = port("--master-port", raw.master_port);
    if (!value.ok()) return value.status();
    options.master_port = value.value();
  } else if (!raw.standalone && raw.rdzv_endpoint.find(':') != std::string::npos) {
    const auto value = port("--rdzv-endpoint", raw.rdzv_endpoint.substr(raw.rdzv_endpoint.rfind(':') + 1));
    if (!value.ok()) return value.status();
    options.master_port = value.value();
  }
  return {};
}

Status check_output(const Raw& raw, LaunchOptions& options) {
  const auto redirects = parse_streams("--redirects", raw.redirects);
  if (!redirects.ok()) return redirects.status();
  const auto tee = parse_streams("--tee", raw.tee);
  if (!tee.ok()) return tee.status();
  // Every stream is logged; --tee says that it is shown too, which undoes a redirect of the same stream.
  options.redirects.all = redirects.value().all & static_cast<std::uint8_t>(~tee.value().all);
  for (std::uint32_t slot = 0; slot < options.workers; ++slot) {
    std::uint8_t bits = 0x80;
    for (const int stream : {1, 2}) {
      if (redirects.value().has(Slot(slot), stream) && !tee.value().has(Slot(slot), stream)) {
        bits |= static_cast<std::uint8_t>(stream);
      }
    }
    options.redirects.by_slot.push_back(bits);
  }
  std::stringstream list(raw.local_ranks);
  for (std::string item; std::getline(list, item, ',');) {
    const auto slot = whole_number(item);
    if (!slot.has_value() || *slot >= options.workers) {
      return wrong("--local-ranks-filter takes slots below " + std::to_string(options.workers) + ", not '" + item +
                   "'");
    }
    options.shown.emplace_back(*slot);
  }
  return {};
}

Status check_times(const Raw& raw, LaunchOptions& options) {
  const auto seconds = [](const std::string& flag, double value, std::chrono::milliseconds& out) -> Status {
    if (!(value >= 0.1) || value > 1e6) return wrong(flag + " takes seconds from 0.1 to 1000000");
    out = std::chrono::milliseconds(std::llround(value * 1000));
    return {};
  };
  if (Status status = seconds("--stop-timeout", raw.stop_seconds, options.stop_timeout); !status.ok()) return status;
  if (Status status = seconds("--grace", raw.grace_seconds, options.grace); !status.ok()) return status;
  if (raw.hang_seconds.has_value()) {
    if (Status status = seconds("--hang-timeout", *raw.hang_seconds, options.hang_timeout.emplace()); !status.ok()) {
      return status;
    }
  }
  return seconds("--orphan-timeout", raw.orphan_seconds, options.orphan_timeout);
}

Status check_script(const LaunchOptions& options) {
  if (options.script.empty()) return wrong("closeranks run needs a script: closeranks run --nproc-per-node 4 train.py");
  if (options.module && options.no_python)
    return wrong("-m and --no-python exclude each other: say which one is meant");
  if (options.spares > max_spares) {
    return wrong("--spares takes 0 to " + std::to_string(max_spares) + ": each holds torch in memory");
  }
  if (options.min_present < 1 || options.min_present > options.workers) {
    return wrong("--min-present is " + std::to_string(options.min_present) +
                 "; it may be 1 to the number of workers, " + std::to_string(options.workers));
  }
  return {};
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  std::size_t best_cost = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    // A beginning of a flag is what argparse would have taken for it.
    if (word.size() >= 5 && candidate.starts_with(word)) return candidate;
    std::vector<std::size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < word.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i + 1;
      for (std::size_t j = 0; j < candidate.size(); ++j) {
        const std::size_t replaced = diagonal + (word[i] == candidate[j] ? 0 : 1);
        diagonal = row[j + 1];
        row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
      }
    }
    if (row.back() < best_cost) {
      best_cost = row.back();
      best = candidate;
    }
  }
  return best;
}

Result<ParsedRun> parse_run(std::span<const std::string> arguments) {
  ParsedRun parsed;
  Raw raw;
  CLI::App app("Runs a script on several workers of this host; with --shrink, lost workers cost the others no step.",
               "closeranks run");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  declare(app, parsed.options, raw);
  app.footer(
      "\nThe script, and what follows it, is passed on as it is:\n"
      "  closeranks run --nproc-per-node 4 --shrink train.py --epochs 3\n"
      "Exit status: 0 when every worker of the last view exited 0; else that of the first cause (128+n for signal n).");

  auto parts = cut(app, arguments);
  if (!parts.ok()) return parts.status();
  try {
    std::vector<std::string> reversed(parts.value().flags.rbegin(), parts.value().flags.rend());
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    parsed.help = app.help("closeranks run [flags]", CLI::AppFormatMode::Normal);
    return parsed;
  } catch (const CLI::ParseError& error) {
    return wrong(error.what());
  }

  LaunchOptions& options = parsed.options;
  options.script = std::move(parts.value().script);
  const auto workers = worker_count(raw.nproc);
  if (!workers.ok()) return workers.status();
  options.workers = workers.value();
  for (const Status& status : {check_hosts(raw), check_ports(raw, options), check_output(raw, options),
                               check_times(raw, options), check_script(options)}) {
    if (!status.ok()) return status;
  }
  return parsed;
}

}  // namespace closeranks::agent
