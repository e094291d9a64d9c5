-- SPDX-License-Identifier: GPL-2.0-or-later
-- Builds and takes apart strings.  Argument: rounds.
local rounds = tonumber(arg and arg[1]) or 300
local keep, bytes = {}, 0
for i = 1, rounds do
  local parts = {}
  for k = 1, 50 do parts[k] = ("%d:%s"):format(i * k, ("x"):rep(k)) end
  local s = table.concat(parts, ",")
  local n = 0
  for number in s:gmatch("(%d+):") do n = n + tonumber(number) end
  keep[i % 100 + 1] = s:upper():reverse() .. n
  bytes = bytes + #s
end
local t = {}
for i = 1, #keep do t[i] = keep[i]:sub(-8) end
print(bytes, #table.concat(t), table.concat(t):byte(-1))
