" Colours of `.pipe` files, which tools/editor/grammar.py makes from frontend/grammar.ebnf.
if exists("b:current_syntax")
  finish
endif
syntax match pipeContextual /\<\%(arguments\|as\|choose\|column\|freeze\|init\|int\|keep\|lacks\|layer\|mesh\|note\|null\|only\|read\|report\)\>\ze\%(\s*{\|("\|\s\+\%(\%(or\|and\|not\|in\|then\|else\|for\)\>\)\@![A-Za-z_"0-9\[]\)/
syntax match pipeThing /\<\%(weight\|opt\|grad\|act\|dact\|stash\|kv\|dkv\)\>\ze\s*(/
syntax keyword pipeDeclaration block cluster common family fn import model schedule train
syntax keyword pipeStatement part stage of at weight opt layers let var require return for repeat while if then else on move from to together attend over limit recompute shard host with updates
syntax keyword pipeOperator or and not in
syntax keyword pipeConstant true false
syntax keyword pipeRole ranks microbatches slices
syntax match pipeUnit /\<[FBIWRU]\>/
syntax match pipeNumber /\<\d\+\%(\.\d\+\)\?\%([eE][-+]\?\d\+\)\?\>/
syntax match pipeMark /\%(!=\|\.\.\|\/\/\|<=\|==\|>=\|%\|\*\|+\|-\|\/\|;\|<\|=\|>\)/
syntax region pipeString start=/"/ end=/"/ oneline
syntax match pipeComment /#.*$/ contains=@Spell
highlight default link pipeDeclaration Structure
highlight default link pipeStatement Statement
highlight default link pipeOperator Operator
highlight default link pipeConstant Boolean
highlight default link pipeRole Identifier
highlight default link pipeContextual Keyword
highlight default link pipeUnit Function
highlight default link pipeThing Type
highlight default link pipeNumber Number
highlight default link pipeMark Operator
highlight default link pipeString String
highlight default link pipeComment Comment
let b:current_syntax = "pipe"
