-- SPDX-License-Identifier: GPL-2.0-or-later
-- Counts substrings of a random sequence in tables keyed by strings.  Argument: length.
local length = tonumber(arg and arg[1]) or 4000
local seed, letters, parts = 42, {"a", "c", "g", "t"}, {}
for i = 1, length do
  seed = (seed * 3877 + 29573) % 139968
  parts[i] = letters[seed * 4 // 139968 + 1]
end
local sequence = table.concat(parts)

for _, k in ipairs {1, 2, 4, 6, 12, 18} do
  local counts, distinct, most, which = {}, 0, 0, ""
  for i = 1, #sequence - k + 1 do
    local s = sequence:sub(i, i + k - 1)
    local c = (counts[s] or 0) + 1
    counts[s] = c
    if c == 1 then distinct = distinct + 1 end
    if c > most or c == most and s < which then most, which = c, s end
  end
  print(k, distinct, most, which)
end
