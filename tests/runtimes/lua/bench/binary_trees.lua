-- SPDX-License-Identifier: GPL-2.0-or-later
-- Trees that live long and trees that die young.  Argument: depth.
local depth = tonumber(arg and arg[1]) or 8

local function build(d)
  if d == 0 then return {} end
  return {build(d - 1), build(d - 1)}
end

local function nodes(t)
  return t[1] and 1 + nodes(t[1]) + nodes(t[2]) or 1
end

local long = build(depth)
for d = 4, depth, 4 do
  local rounds, sum = 1 << (depth - d + 4), 0
  for _ = 1, rounds do sum = sum + nodes(build(d)) end
  print(rounds, d, sum)
end
print(nodes(long))
